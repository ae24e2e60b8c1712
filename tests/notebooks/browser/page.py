"""One notebook in JupyterLab, as a person handles it: the menu, the keyboard, the screen.

What the whole notebook holds is asked from JupyterLab's own model, because only what is near the
window is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FAR = 120.0  # seconds; a machine may be busy

PANEL = """
    const panel = [...jupyterapp.shell.widgets('main')].find(
        one => one.context && one.context.path === path && one.content.model);
"""
READY = f"""path => {{
    if (!window.jupyterapp) return false;
    {PANEL}
    return Boolean(panel && panel.context.isReady && panel.content.widgets.length
        && panel.sessionContext.session?.kernel?.status === 'idle');
}}"""
CELLS = f"""path => {{
    {PANEL}
    return panel.content.model.sharedModel.cells.map(cell => cell.toJSON());
}}"""
AT_REST = f"""path => {{
    {PANEL}
    const code = [...panel.content.model.cells].filter(
        cell => cell.type === 'code' && cell.sharedModel.getSource().trim());
    return panel.sessionContext.session.kernel.status === 'idle'
        && code.every(cell => cell.executionState !== 'running' && cell.executionCount);
}}"""
SHOW = f"""([path, index]) => {{
    {PANEL}
    panel.content.activeCellIndex = index;
    return panel.content.scrollToItem(index, 'center');
}}"""


@dataclass(frozen=True)
class Cell:
    """A cell as JupyterLab's model has it."""

    index: int
    kind: str
    source: str
    tags: list[str]
    count: int | None
    outputs: list[dict] = field(repr=False)

    @property
    def errors(self) -> list[dict]:
        return [one for one in self.outputs if one["output_type"] == "error"]

    def shows(self, mime: str) -> bool:
        return any(mime in one.get("data", {}) for one in self.outputs)


class NotebookPage:
    """A tab with one notebook in it."""

    def __init__(self, tab, path: str) -> None:
        self.tab, self.path = tab, path

    def wait_until_open(self) -> None:
        """The notebook is drawn, and its kernel answers."""
        self.tab.wait_for_function(READY, arg=self.path)

    def menu(self, menu: str, entry: str) -> None:
        """Click an entry of a menu at the top."""
        self.tab.click(f'#jp-MainMenu >> text="{menu}"')
        self.tab.click(f'.lm-Menu-itemLabel >> text="{entry}"')

    def cells(self) -> list[Cell]:
        return [
            Cell(
                index,
                one["cell_type"],
                "".join(one["source"]),
                one["metadata"].get("tags", []),
                one.get("execution_count"),
                one.get("outputs", []),
            )
            for index, one in enumerate(self.tab.evaluate(CELLS, self.path))
        ]

    def code(self) -> list[Cell]:
        return [cell for cell in self.cells() if cell.kind == "code" and cell.source.strip()]

    def find(self, text: str) -> Cell:
        """The one code cell that holds a text."""
        (found,) = [cell for cell in self.code() if text in cell.source]
        return found

    def run_all(self) -> None:
        """Everything anew, from the menu; it has ended when every cell has its number."""
        self.menu("Edit", "Clear Outputs of All Cells")
        assert not any(cell.count or cell.outputs for cell in self.code())
        self.menu("Run", "Run All Cells")
        self.tab.wait_for_function(AT_REST, arg=self.path)

    def show(self, cell: Cell) -> None:
        """Bring a cell to the middle of the window, where it is drawn."""
        self.tab.evaluate(SHOW, [self.path, cell.index])
        self.tab.wait_for_selector(".jp-Notebook-cell.jp-mod-active .jp-InputArea")

    def below(self, cell: Cell):
        """The outputs of a cell on the screen."""
        self.show(cell)
        return self.tab.locator(".jp-Notebook-cell.jp-mod-active .jp-Cell-outputArea")
