"use strict";

// Search: show the routes and objects that contain every word.
const search = document.getElementById("search");
const nothing = document.getElementById("nothing");
const intro = document.getElementById("top");
const articles = [...document.querySelectorAll("article")].map((element) => ({
  element,
  text: element.textContent.toLowerCase(),
  entry: document.querySelector(`nav li[data-for="${element.id}"]`),
}));
const groups = [...document.querySelectorAll(".group")];
const lists = [...document.querySelectorAll("nav ul")];

function applySearch() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const { element, text, entry } of articles) {
    const matches = words.every((word) => text.includes(word));
    element.hidden = !matches;
    if (entry) entry.hidden = !matches;
    found += matches;
  }
  for (const group of groups) group.hidden = !group.querySelector("article:not([hidden])");
  for (const list of lists) {
    const empty = !list.querySelector("li:not([hidden])");
    list.hidden = empty;
    list.previousElementSibling.hidden = empty;
  }
  intro.hidden = words.length > 0;
  nothing.hidden = found > 0;
}

search.addEventListener("input", applySearch);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "Escape" && search.value) {
    search.value = "";
    applySearch();
  }
});
document.addEventListener("click", (event) => {
  const target = event.target.closest('a[href^="#"]');
  if (target && document.getElementById(target.hash.slice(1))?.closest("[hidden]")) {
    search.value = "";
    applySearch();
  }
});

// On narrow screens the table of contents covers the page: close it when a link was followed.
const menu = document.getElementById("menu");
document.querySelector("nav").addEventListener("click", (event) => {
  if (event.target.closest("a")) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") menu.open = false;
});

// Highlight the visible section in the table of contents.
const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      document.querySelector(`nav li[data-for="${target.id}"]`)?.classList.toggle("here", isIntersecting);
    }
  },
  { rootMargin: "-15% 0px -75% 0px" },
);
for (const { element } of articles) observer.observe(element);

// Add a button to each sample that copies it.
for (const caption of document.querySelectorAll("figcaption")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(caption.nextElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  caption.append(button);
}
