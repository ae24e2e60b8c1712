"""Answers to `atomic_save` of lesson 14: right, right by another road, and wrong in likely ways."""

from __future__ import annotations

from tests.course_lessons.answers import changed

ATOMIC = """
def atomic_save(disk, name, data, older, keep, group):
    me, tmp = group.rank(), "tmp-" + name
    if me == 0:
        disk.remove(tmp)
        disk.make(tmp)
    dist.barrier(group=group)
    disk.write(f"{tmp}/rank-{me}", data)
    disk.sync(f"{tmp}/rank-{me}")
    dist.barrier(group=group)
    if me == 0:
        disk.sync(tmp)
        disk.rename(tmp, name)
        disk.sync(".")
        disk.write("latest.new", name)
        disk.sync("latest.new")
        disk.rename("latest.new", "latest")
        disk.sync(".")
        for old in older[: max(0, len(older) + 1 - keep)]:
            disk.remove(old)
    dist.barrier(group=group)
"""
# The last rank leads, a sum is the barrier, each file is synced in its folder by its own rank.
BY_SUMS = """
def meet(group):
    dist.all_reduce(torch.zeros(1), group=group)


def atomic_save(disk, name, data, older, keep, group):
    leads = group.rank() == group.size() - 1
    if leads:
        disk.write("latest.2", name)
        disk.sync("latest.2")
        disk.remove("half")
    meet(group)
    disk.make("half")
    disk.write(f"half/rank-{group.rank()}", data)
    disk.sync(f"half/rank-{group.rank()}")
    disk.sync("half")
    meet(group)
    if leads:
        disk.rename("./half", f"{name}/")
        disk.sync(".")
        disk.rename("latest.2", "latest")
        disk.sync(".")
        while len(older) >= keep:
            disk.remove(older[0])
            older = older[1:]
    meet(group)
"""
LEAD = "    if me == 0:\n        disk.sync(tmp)\n"
MOVE = '        disk.rename(tmp, name)\n        disk.sync(".")\n'
NEXT = """        disk.write("latest.new", name)
        disk.sync("latest.new")
        disk.rename("latest.new", "latest")
"""
LAST = NEXT + '        disk.sync(".")\n'
OLD = """        for old in older[: max(0, len(older) + 1 - keep)]:
            disk.remove(old)
"""
WROTE = '    disk.sync(f"{tmp}/rank-{me}")\n    dist.barrier(group=group)\n'


def atomic(*changes: tuple[str, str]) -> str:
    return changed(ATOMIC, *changes)


ASIDE = """        for old in [*older, name][:-keep]:
            disk.rename(old, old.replace("step", "old"))
"""
FILES = """        for old in [*older, name][:-keep]:
            for r in range({}):
                disk.remove(f"{{old}}/rank-{{r}}")
            disk.remove(old)
"""
WRONG_ATOMIC = {
    "the old one renamed and kept": (atomic((OLD, ASIDE)), "old checkpoint renamed, not removed"),
    "the old one removed file by file": (
        atomic((OLD, FILES.format("group.size()"))), "an old one removed in pieces"
    ),
    "no sync of the file": (
        atomic(('    disk.sync(f"{tmp}/rank-{me}")\n', "")), "file not synced"
    ),
    "latest first": (
        atomic((MOVE + LAST, LAST + MOVE)), "latest moved first"
    ),
    "written in place": (
        atomic(('"tmp-" + name', "name"), (MOVE, '        disk.sync(".")\n')),
        "written in place",
    ),
    "the old one removed first": (
        atomic((OLD, ""), (LEAD, "    if me == 0:\n        for old in [*older, name][:-keep]:\n"
               "            disk.remove(old)\n        disk.sync(tmp)\n")),
        "the old one removed first",
    ),
    "every rank renames": (
        atomic((LEAD, "    if True:\n        disk.sync(tmp)\n")), "every rank renames"
    ),
    "from another file system": (
        atomic(('"tmp-" + name', '"/tmp/" + name')), "across file systems"
    ),
    "keeps no older one": (
        atomic((OLD, "        for old in older:\n            disk.remove(old)\n")),
        "too few stay",
    ),
    "keeps too few of few": (
        atomic(("max(0, len(older) + 1 - keep)", "len(older) + 1 - keep")), "too few stay"
    ),
    "a barrier that is not waited for": (
        atomic((WROTE, WROTE.replace("group=group", "group=group, async_op=True"))),
        "not waited for",
    ),
    "keeps all": (atomic((OLD, "")), "older ones stay"),
    "keeps one too many": (atomic(("len(older) + 1 - keep", "len(older) - keep")),
                           "older ones stay"),
    "the folder not synced": (
        atomic((LEAD, "    if me == 0:\n")), "folder not synced"
    ),
    "no sync between the renames": (
        atomic((MOVE, "        disk.rename(tmp, name)\n")), "latest before the folder"
    ),
    "latest in place": (
        atomic((NEXT, '        disk.write("latest", name)\n        disk.sync("latest")\n')),
        "latest written in place",
    ),
    "latest not synced": (
        atomic(('        disk.sync("latest.new")\n', "")), "latest not synced"
    ),
    "the end not synced": (
        atomic((LAST, NEXT), (OLD, "")), "older ones stay"
    ),
    "removed while others write": (
        atomic(("        disk.remove(tmp)\n        disk.make(tmp)\n    dist.barrier(group=group)\n",
                "        disk.remove(tmp)\n    disk.make(tmp)\n")),
        "not saved",
    ),
    "removed before latest is on the disk": (
        atomic((LAST, NEXT)), "removed before it was replaced"
    ),
    "synced once, in the end": (
        atomic((LAST + OLD, NEXT + OLD + '        disk.sync(".")\n')),
        "removed before it was replaced",
    ),
    "no barrier before the rename": (
        atomic((WROTE, '    disk.sync(f"{tmp}/rank-{me}")\n')),
        "renamed before all have written",
    ),
    "no barrier after the folder": (
        atomic(("        disk.make(tmp)\n    dist.barrier(group=group)\n",
                "        disk.make(tmp)\n")),
        "ranks not waited for",
    ),
    "each makes it, none waits": (
        atomic(("    if me == 0:\n        disk.remove(tmp)\n        disk.make(tmp)\n"
                "    dist.barrier(group=group)\n", "    disk.make(tmp)\n"),
               (WROTE, '    disk.sync(f"{tmp}/rank-{me}")\n')),
        "renamed before all have written",
    ),
    "no barrier at the end": (
        atomic((OLD + "    dist.barrier(group=group)\n", OLD)), "returned too early"
    ),
    "leftovers": (atomic(("        disk.remove(tmp)\n", "")), "leftovers of a killed save"),
    "one rank writes": (
        atomic(('    disk.write(f"{tmp}/rank-{me}", data)\n    disk.sync(f"{tmp}/rank-{me}")\n',
                '    if me == 0:\n        disk.write(f"{tmp}/rank-{me}", data)\n'
                '        disk.sync(f"{tmp}/rank-{me}")\n')),
        "own file not written",
    ),
    "another's data": (atomic(('rank-{me}", data)', 'rank-{me}", name)')), "not saved"),
    "latest not moved": (atomic((LAST, "")), "latest not moved"),
    "latest with a path": (
        atomic(('disk.write("latest.new", name)', 'disk.write("latest.new", "./" + name)')),
        "latest not moved",
    ),
    "the old one is the next part folder": (
        atomic((OLD, """        for i, old in enumerate(older[: max(0, len(older) + 1 - keep)]):
            disk.rename(old, f"spare-{i}")
""")),
        "old checkpoint renamed, not removed",
    ),
    "one of the old one's files removed first": (
        atomic((OLD, FILES.format("1"))), "an old one removed in pieces"
    ),
    "the old one's files moved out one by one": (
        atomic((OLD, FILES.format("2").replace(
            'disk.remove(f"{old}/rank-{r}")',
            'disk.rename(f"{old}/rank-{r}", f"rubbish-{r}")\n                '
            'disk.remove(f"rubbish-{r}")'))),
        "an old one removed in pieces",
    ),
    "all ranks write the same": (
        atomic(('rank-{me}", data)', 'rank-{me}", data[: len(name)])')), "not saved"
    ),
    "latest removed before it is replaced": (
        atomic((NEXT, NEXT.replace("        disk.rename(", '        disk.remove("latest")\n'
                                   "        disk.rename("))),
        "latest removed first",
    ),
    "older changed": (
        atomic((OLD, "        while len(older) >= keep:\n            disk.remove(older.pop(0))\n")),
        "input changed",
    ),
}  # fmt: skip

BESIDE = atomic(('"tmp-" + name', 'name + ".tmp"'))
REMOVED = """            disk.sync(".")
            disk.remove(old.replace("step", "old"))
"""
EMPTIED = """            disk.remove(old.replace("step", "old") + "/rank-0")
            disk.remove(old.replace("step", "old"))
"""
RIGHT = {
    "atomic_save": {
        "the first leads": ATOMIC,
        "the last leads": BY_SUMS,
        "a name with more": BESIDE,
        "renamed, then removed": atomic((OLD, ASIDE + REMOVED)),
        "emptied under another name": atomic((OLD, ASIDE + EMPTIED)),
    }
}
WRONG = {"atomic_save": WRONG_ATOMIC}
