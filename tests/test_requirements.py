"""The requirements page explains every requirement number that tests cite; each check finds a planted fault."""

from tools import requirements

SUBJECTS = {"Money": {"M1": "The balance is the sum of the entries.", "R12": "A pending job can fail."}}
TEST = '''
def test_a():
    """R12: and a sentence."""

def test_b():
    # M1
    assert True

CASES = [("M1", "UPDATE wallet")]
'''


def test_every_number_that_a_test_cites_is_explained_and_every_explained_one_is_cited() -> None:
    citations = requirements.find_citations(requirements.read_tests())
    assert len(citations) > 500
    assert requirements.problems(requirements.read_requirements(), citations) == []


def test_the_page_is_fresh() -> None:
    page = requirements.ROOT / "docs" / "reference" / "requirements.md"
    assert page.read_text() == requirements.render_page(), "run: make docs"


def test_citations_are_found_in_docstrings_comments_and_tables_of_cases() -> None:
    assert requirements.find_citations({"tests/test_x.py": TEST}) == {
        "R12": {"tests/test_x.py::test_a"},
        "M1": {"tests/test_x.py::test_b", "tests/test_x.py"},
    }


def test_a_range_cites_every_number_in_it() -> None:
    assert list(requirements.expand("# M1-M3, R12-14: files in S3")) == ["M1", "M2", "M3", "R12", "R13", "R14"]


def test_a_planted_unknown_number_is_found() -> None:
    citations = requirements.find_citations({"tests/test_x.py": TEST + "# R999\n"})
    assert requirements.problems(SUBJECTS, citations) == ["tests/test_x.py cites R999, which has no sentence"]


def test_a_planted_requirement_without_a_test_is_found() -> None:
    citations = requirements.find_citations({"tests/test_x.py": TEST})
    assert requirements.problems({**SUBJECTS, "Jobs": {"J5": "A sentence."}}, citations) == ["no test cites J5"]


def test_a_planted_stale_page_is_found() -> None:
    citations = requirements.find_citations({"tests/test_x.py": TEST})
    page = requirements.render(SUBJECTS, citations)
    assert requirements.render(SUBJECTS, citations | {"M1": {"tests/test_y.py::test_c"}}) != page
    assert requirements.render({"Money": {**SUBJECTS["Money"], "M1": "Another sentence."}}, citations) != page
