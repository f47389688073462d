"""The tests' list of methods: every general test plays each of its entries.

A method of ``hpcfl.algorithms.ALGORITHMS`` needs at least one entry.  The tests of the contract, of
traffic, executors, ranks, resumes and precisions follow from it.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from tests.long_form import LONG

Keys = Mapping[str, Any]

FEDAVG: Keys = {"name": "fedavg"}
# Of a linear model of three classes and four features, in vectors of its size:
NUMBERS = Fraction(2, 15)  # one number for each of its two parameters
MATRIX = Fraction(12, 15)  # its weights
NUMBER = Fraction(1, 15)  # one number alone


class Identity(NamedTuple):
    """With these keys changed, a configuration is another method, bit for bit."""

    changes: Keys
    other: Keys = FEDAVG
    tolerance: float = 0.0
    """Largest absolute difference, where the two round differently."""


class Entry(NamedTuple):
    """A configuration of a method, and facts about it that do not follow from its code."""

    keys: Keys
    """Of the job's ``algorithm`` section."""
    vectors: tuple[Fraction | int, Fraction | int] = (1, 1)
    """Sent down and up per client and round, in vectors of the model's size."""
    identity: Identity | None = None
    up: Callable[[int], int] | None = None
    """From the bytes of a number to those sent up, where they are no vectors of numbers."""


ENTRIES: Mapping[str, Entry] = {  # by a name for test ids
    "fedavg": Entry(FEDAVG),
    "fedavg-server_lr": Entry({"name": "fedavg", "server_lr": 0.7}),
    "fedprox": Entry({"name": "fedprox", "mu": 0.5}, identity=Identity({"mu": 0.0})),
    "fedavgm": Entry({"name": "fedavgm", "server_lr": 0.3}, identity=Identity({"beta": 0.0})),
    "fedavgm-nesterov": Entry(
        {"name": "fedavgm", "server_lr": 0.3, "nesterov": True}, identity=Identity({"beta": 0.0})
    ),
    "diloco": Entry({"name": "diloco"}, identity=Identity({"beta": 0.0})),
    "slowmo": Entry({"name": "slowmo"}, identity=Identity({"beta": 0.0}, tolerance=1e-12)),
    "streaming_diloco": Entry(
        {"name": "streaming_diloco", "fragments": 2}, (Fraction(1, 2), Fraction(1, 2))
    ),
    "streaming_diloco-at-once": Entry(
        {"name": "streaming_diloco", "fragments": 1, "delay": 0, "alpha": 0.3}
    ),
    "fedadam": Entry({"name": "fedadam"}),
    "fedadam-corrected": Entry({"name": "fedadam", "bias_correction": True, "v0": 0.0001}),
    "fedyogi": Entry({"name": "fedyogi"}),
    "fedadagrad": Entry({"name": "fedadagrad"}),
    "scaffold-1": Entry({"name": "scaffold", "option": 1}, (2, 2)),
    "scaffold-2": Entry({"name": "scaffold", "option": 2, "server_lr": 0.7}, (2, 2)),
    "scaffold-gradient": Entry({"name": "scaffold", "first": "gradient"}, (2, 2)),
    "feddyn": Entry({"name": "feddyn", "alpha": 0.5}),
    "adabest": Entry(
        {"name": "adabest", "mu": 0.2, "beta": 0.5}, identity=Identity({"mu": 0.0, "beta": 0.0})
    ),
    "mime": Entry({"name": "mime"}, (2, 2)),
    "mimemom": Entry({"name": "mimemom", "beta": 0.5}, (3, 2)),
    "mimemom-ema": Entry({"name": "mimemom", "form": "ema", "server_lr": 0.7}, (3, 2)),
    "mimelite": Entry({"name": "mimelite"}, (1, 2)),
    "mimelitemom": Entry({"name": "mimelitemom", "beta": 0.5}, (2, 2)),
    "mimelitemom-ema": Entry({"name": "mimelitemom", "form": "ema", "server_lr": 0.7}, (2, 2)),
    "mimeadam": Entry({"name": "mimeadam", "eps": 0.5}, (4, 2)),
    "mimeadam-optimizer": Entry(
        {"name": "mimeadam", "form": "optimizer", "server_lr": 0.7}, (4, 2)
    ),
    "mimeliteadam": Entry({"name": "mimeliteadam", "eps": 0.5, "v0": 0.1}, (3, 2)),
    "mimeliteadam-optimizer": Entry({"name": "mimeliteadam", "form": "optimizer"}, (3, 2)),
    "mimemvr": Entry(
        {"name": "mimemvr", "beta": 0.5, "server_lr": 0.7}, (3, 3), Identity({"beta": 0.0})
    ),
    "fedcm": Entry({"name": "fedcm", "alpha": 0.3}, (2, 1), Identity({"alpha": 1.0})),
    "fedcm-client": Entry(
        {"name": "fedcm", "alpha": 0.3, "norm": "client", "server_lr": 0.7},
        (2, 1),
        Identity({"alpha": 1.0}),
    ),
    "fedadc": Entry({"name": "fedadc", "beta": 0.5}, (2, 1)),
    "fedadc-nesterov": Entry(
        {"name": "fedadc", "beta": 0.5, "beta_local": 0.5, "nesterov": True}, (2, 1)
    ),
    "fedadamw": Entry({"name": "fedadamw", "eps": 0.5}, (2 + NUMBERS, 1 + NUMBERS)),
    "fedadamw-full-running": Entry(
        {"name": "fedadamw", "v": "full", "running": True, "eps": 0.5}, (3, 2)
    ),
    "fedlada": Entry({"name": "fedlada", "alpha": 0.5, "eps": 0.5}, (3, 2)),
    "fedlc": Entry({"name": "fedlc", "tau": 0.7}),
    "fedntd": Entry(
        {"name": "fedntd", "tau": 2.0}, identity=Identity({"beta": 0.0}, tolerance=1e-14)
    ),
    "moon": Entry({"name": "moon"}),  # FedAvg on a linear model, whose features are the inputs
    "fedmuon": Entry({"name": "fedmuon"}, (2 + MATRIX, 1 + MATRIX)),
    "fedmuon-plain": Entry(
        {"name": "fedmuon", "nesterov": False, "beta": 0.5, "matrix_lr": 0.7, "server_lr": 0.7},
        (2 + MATRIX, 1 + MATRIX),
    ),
    "fedsam": Entry({"name": "fedsam"}, identity=Identity({"rho": 0.0})),
    "mofedsam": Entry({"name": "mofedsam", "alpha": 0.3}, (2, 1)),
    "fedmim": Entry(
        {"name": "fedmim", "alpha": [0.4, 0.2], "beta": [0.5, 0.1]},
        (3, 1),
        Identity({"alpha": [0.0, 0.0], "beta": [0.0, 0.0]}),
    ),  # x and J past models
    "fedmim-3": Entry(
        {"name": "fedmim", "alpha": [0.3, 0.1, 0.1], "beta": [0.2, 0.2, 0.0]}, (4, 1)
    ),
    "ghb": Entry({"name": "ghb", "beta": 0.5}, (2, 1), Identity({"beta": 0.0})),
    "ghb-1-nesterov": Entry(
        {"name": "ghb", "beta": 0.5, "tau": 1, "nesterov": True}, (2, 1), Identity({"beta": 0.0})
    ),
    "ghb-3": Entry({"name": "ghb", "beta": 0.9, "tau": 3, "server_lr": 0.7}, (2, 1)),
    "localghb": Entry({"name": "localghb", "beta": 0.5}, identity=Identity({"beta": 0.0})),
    "localghb-nesterov": Entry(
        {"name": "localghb", "nesterov": True, "server_lr": 0.7}, identity=Identity({"beta": 0.0})
    ),
    "fedhbm-zero": Entry({"name": "fedhbm", "first": "zero"}, identity=Identity({"beta": 0.0})),
    "fedhbm-shared": Entry(
        {"name": "fedhbm", "first": "shared", "server_lr": 0.7}, identity=Identity({"beta": 0.0})
    ),
    "fedhbm-random": Entry(
        {"name": "fedhbm", "first": "random", "beta": 0.5}, identity=Identity({"beta": 0.0})
    ),
    "fedhbm-zero-nesterov": Entry(
        {"name": "fedhbm", "first": "zero", "nesterov": True}, identity=Identity({"beta": 0.0})
    ),
    "fedhbm-shared-nesterov": Entry({"name": "fedhbm", "first": "shared", "nesterov": True}),
    "fedhbm-random-nesterov": Entry({"name": "fedhbm", "first": "random", "nesterov": True}),
    "fednova": Entry({"name": "fednova"}, (1, 1 + NUMBER)),
    "fednova-mu": Entry({"name": "fednova", "mu": 0.5, "server_lr": 0.7}, (1, 1 + NUMBER)),
    "fedacg": Entry(
        {"name": "fedacg", "lam": 0.5, "beta": 0.1}, identity=Identity({"lam": 0.0, "beta": 0.0})
    ),
    "fedvarp": Entry({"name": "fedvarp"}),
    "fedexp": Entry({"name": "fedexp", "eps": 0.01}, (1, 1 + NUMBER)),
    "fedexp-average": Entry({"name": "fedexp", "average": 2}, (1, 1 + NUMBER)),
    "fedinit": Entry({"name": "fedinit", "beta": 0.3}, identity=Identity({"beta": 0.0})),
    "fedinit-start": Entry(
        {"name": "fedinit", "delta": "start", "server_lr": 0.7}, identity=Identity({"beta": 0.0})
    ),
    "fedswa": Entry({"name": "fedswa"}, identity=Identity({"rho": 1.0}, tolerance=1e-12)),
    "fedmoswa": Entry({"name": "fedmoswa", "server_lr": 0.7}, (2, 2)),
    "fedper": Entry(
        {"name": "fedper", "personal": ["1.bias"], "server_lr": 0.7},
        (MATRIX, MATRIX),
        Identity({"personal": []}),
    ),
    "fedrep": Entry(
        {"name": "fedrep", "personal": ["1.bias"], "body": 0.5},
        (MATRIX, MATRIX),
        Identity({"personal": [], "body": 1.0}, tolerance=1e-12),
    ),
    "fedbn": Entry({"name": "fedbn", "server_lr": 0.7}, (MATRIX, MATRIX)),
    "ditto": Entry({"name": "ditto", "lam": 0.5}),
    "fedspeed": Entry({"name": "fedspeed", "mu": 0.5}),
    "fedspeed-cohort": Entry(
        {"name": "fedspeed", "mu": 0.5, "alpha": 0.6, "normalised": False, "server": "cohort"}
    ),
    "fedgamma": Entry({"name": "fedgamma", "rho": 0.1}, (2, 2)),
    "fedgamma-1": Entry({"name": "fedgamma", "option": 1, "first": "gradient"}, (2, 2)),
    "fedsmoo": Entry({"name": "fedsmoo", "alpha": 0.5}, (2, 2)),
    "fedsmoo-simplified": Entry(
        {"name": "fedsmoo", "alpha": 0.5, "simplified": True, "server_lr": 0.7}, (2, 2)
    ),
    "fedlesam": Entry({"name": "fedlesam"}, identity=Identity({"rho": 0.0})),
    "fedlesam-previous": Entry(
        {"name": "fedlesam", "source": "previous", "server_lr": 0.7},
        (2, 1),
        Identity({"rho": 0.0}),
    ),
    "fedlesam_s": Entry({"name": "fedlesam_s"}, (2, 2)),
    "fedlesam_s-1": Entry({"name": "fedlesam_s", "option": 1, "first": "gradient"}, (2, 2)),
    "fedlesam_d": Entry({"name": "fedlesam_d", "alpha": 0.5}),
    "topk": Entry(
        {"name": "topk", "ratio": 0.3},
        identity=Identity({"ratio": 1.0}),
        up=lambda number: 5 * (number + 4),
    ),
    "ef21": Entry({"name": "ef21", "ratio": 0.3}, up=lambda number: 5 * (number + 4)),
    "randk": Entry(
        {"name": "randk", "ratio": 0.5},
        identity=Identity({"ratio": 1.0}),
        up=lambda number: 8 * number,
    ),
    "qsgd": Entry(
        {"name": "qsgd"},
        identity=Identity({"levels": 2**40}, tolerance=1e-9),
        up=lambda number: number + 8,  # 15 signs and levels of 3 bits each
    ),
    "dpfedavg": Entry({"name": "dpfedavg", "clip": 0.5, "noise": 0.3, "server_lr": 0.7}),
    "dpfedavg-plain": Entry({"name": "dpfedavg", "clip": 0.5, "noise": 0.0}),
    "server_only": Entry({"name": "server_only"}),
    "server_only-momentum": Entry({"name": "server_only", "optimizer": "momentum", "beta": 0.5}),
    "server_only-adam": Entry({"name": "server_only", "optimizer": "adam", "server_lr": 0.3}),
    "server_only-mvr": Entry(
        {"name": "server_only", "optimizer": "mvr", "beta": 0.5},
        (2, 1),
        Identity({"beta": 0.0}, {"name": "server_only"}),
    ),
    "centralized": Entry({"name": "centralized", "beta": 0.5}),
}

ALL: Mapping[str, Keys] = {name: entry.keys for name, entry in ENTRIES.items()}


def _sampled() -> list[str]:
    first: dict[str, str] = {}
    for name, keys in ALL.items():
        first.setdefault(keys["name"], name)
    return list(ALL) if LONG else list(first.values())


WHOLE = {"centralized", "streaming_diloco"}
"""The methods whose clients all take part in every round: they refuse other cohorts."""

SAMPLE = _sampled()
"""The first entry of each method; every entry in the long form."""

REFUSE_MOMENTUM: Mapping[str, str] = {
    "centralized": "lasts over the rounds",
    "ditto": "take plain steps",
    "fedadc": "the server's momentum",
    "fedadamw": "its local steps are AdamW's",
    "fedcm": "as K plain steps are long",
    "fedgamma": "set option: 1",
    "fedhbm": "a momentum of their own",
    "fedlada": "its local steps are Adam's",
    "fedlesam_s": "set option: 1",
    "fedmim": "an inertia of their own",
    "fedmoswa": "as plain steps are long",
    "fedmuon": "its local steps are Muon's",
    "fednova": "set mu: 0",
    "fedrep": "a velocity would move",
    "ghb": "a momentum of their own",
    "localghb": "a momentum of their own",
    "mime": "stays fixed while",
    "mimeadam": "stays fixed while",
    "mimeliteadam": "stays fixed while",
    "mimelite": "stays fixed while",
    "mimelitemom": "stays fixed while",
    "mimemom": "stays fixed while",
    "mimemvr": "stays fixed while",
    "mofedsam": "as K plain steps are long",
    "scaffold": "set option: 1",
    "server_only": "take no steps",
}
"""The methods that refuse ``local.momentum``, and words of their reasons.

SCAFFOLD and the methods over it refuse it with option 2, FedNova with a proximal term.
"""

ALLOW_MOMENTUM = [
    name
    for name, keys in ALL.items()
    if keys["name"] not in REFUSE_MOMENTUM or keys.get("option") == 1 or keys == {"name": "fednova"}
]
"""The entries that allow it."""

ALLOW_NESTEROV = [name for name in ALLOW_MOMENTUM if name != "fednova"]
"""The entries that allow ``local.nesterov`` too."""
