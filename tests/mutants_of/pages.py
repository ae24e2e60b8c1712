"""Mistakes in the pages of docs/ that lessons link to: a wrong unit, a wrong name, a dead link."""

from tests.mutation import Mutant

T = "tests/test_docs_pages.py::test_"
COMMANDS = "tests/cli/test_documented.py::test_"


def _mutant(name: str, path: str, old: str, new: str, *tests: str, why: str) -> Mutant:
    return Mutant(f"pages-{name}", path, old, new, tuple(T + test for test in tests), why)


MUTANTS = [
    _mutant(
        "gigabits-as-gigabytes",
        "docs/links.md",
        "| InfiniBand NDR | 50 | 9.4 |",
        "| InfiniBand NDR | 400 | 1.2 |",
        "the_time_of_each_link_follows_from_its_rate",
        why="a network of 400 Gb/s counts as one of 400 GB/s",
    ),
    _mutant(
        "both-ways-as-one",
        "docs/links.md",
        "| NVLink 4 | 450 | 1.0 |",
        "| NVLink 4 | 900 | 0.52 |",
        "the_time_of_each_link_follows_from_its_rate",
        why="the sum of both directions counts as the rate of one",
    ),
    _mutant(
        "share-of-messages",
        "docs/which.md",
        "169 % on InfiniBand NDR",
        "19 % on InfiniBand NDR",
        "the_numbers_that_decide",
        why="tensor parallelism looks as cheap between nodes as inside one",
    ),
    Mutant(
        "pages-output-of-another-day",
        "docs/which.md",
        "72.87   28.00",
        "71.87   27.00",
        (f"{COMMANDS}the_quick_ones_run_as_written",),
        "what the page shows is not what the command says",
    ),
    Mutant(
        "pages-benchmark-of-one-folder",
        "benchmarks/classroom.py",
        "import _notebook\n",
        "from benchmarks import _notebook\n",
        (f"{COMMANDS}a_benchmark_finds_what_stands_beside_it",),
        "the benchmark runs in the clone's folder alone, with the clone on the path",
    ),
    _mutant(
        "name-that-is-none",
        "docs/glossary.md",
        "`stage3_max_live_parameters`",
        "`stage3_live_parameters`",
        "every_name_of_the_glossary_is_one_of_the_library[DeepSpeed]",
        why="a key that DeepSpeed does not have",
    ),
    _mutant(
        "dead-link",
        "docs/glossary.md",
        "[which method do I need?](which.md)",
        "[which method do I need?](what.md)",
        "every_link_leads_to_a_known_host_or_to_a_file_that_is_there[glossary.md]",
        why="a link between pages that leads nowhere",
    ),
]
