"""A contract of import-linter: which package of hpcfl imports which, a line each."""

from importlinter import Contract, ContractCheck, fields, output


class Arrows(Contract):
    """The packages and top modules that each imports are those of its line: ``cli -> io tools``."""

    arrows = fields.ListField(subfield=fields.StringField())

    def check(self, graph, verbose):
        """Compare the lines with the imports."""
        known = {}
        for line in self.arrows:
            name, _, imported = line.partition(" -> ")
            known[name] = set(imported.split())
        found = {}
        for module in graph.modules:
            for imported in graph.find_modules_directly_imported_by(module):
                first, second = (name.split(".") for name in (module, imported))
                if first[0] == second[0] == "hpcfl" and first[1:2] != second[1:2] and first[1:]:
                    found.setdefault(first[1], set()).update(second[1:2])
        faults = [
            f"{name}: {what} {other}"
            for name in sorted(known.keys() | found.keys())
            for what, others in (
                ("imports", found.get(name, set()) - known.get(name, set())),
                ("no longer imports", known.get(name, set()) - found.get(name, set())),
            )
            for other in sorted(others)
        ]
        return ContractCheck(kept=not faults, metadata={"faults": faults})

    def render_broken_contract(self, check):
        """Print what differs."""
        for fault in check.metadata["faults"]:
            output.print_error(f"{fault}; the lines of .importlinter say otherwise")
