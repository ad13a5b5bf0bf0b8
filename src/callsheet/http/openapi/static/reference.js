"use strict";

// Search: a route or shape stays if it has every word.
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

function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const { element, text, entry } of articles) {
    const fits = words.every((word) => text.includes(word));
    element.hidden = !fits;
    if (entry) entry.hidden = !fits;
    found += fits;
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

search.addEventListener("input", show);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "Escape" && search.value) {
    search.value = "";
    show();
  }
});
document.addEventListener("click", (event) => {
  const target = event.target.closest('a[href^="#"]');
  if (target && document.getElementById(target.hash.slice(1))?.closest("[hidden]")) {
    search.value = "";
    show();
  }
});

// Where the contents are folded away, a choice folds them again: they lie over what was chosen.
const menu = document.getElementById("menu");
document.querySelector("nav").addEventListener("click", (event) => {
  if (event.target.closest("a")) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") menu.open = false;
});

// The contents show where one is.
const watching = new IntersectionObserver(
  (seen) => {
    for (const { target, isIntersecting } of seen) {
      document.querySelector(`nav li[data-for="${target.id}"]`)?.classList.toggle("here", isIntersecting);
    }
  },
  { rootMargin: "-15% 0px -75% 0px" },
);
for (const { element } of articles) watching.observe(element);

// Samples can be copied.
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
