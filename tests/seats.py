"""Ranks as they tell where they are, made up."""

from hpcfl.start.rank_layout import RankInfo

VERSIONS = {"hpcfl": "1", "torch": "2"}
CODE = {"mine": "0123", "helpers": "4567"}


def seat(rank, host="a", **changes):
    facts = {"local_rank": rank, "device": "cpu", "threads": 1, "cores": [0, 1, 2, 3]}
    facts |= {"numa": [0], "processor": "X", "versions": VERSIONS, "code": CODE, "job": "j"}
    facts |= changes
    return RankInfo(rank=rank, host=host, **facts)


def gpu(rank, number, host="a", name=None):
    return seat(rank, host, device=f"cuda:{number}", gpu=name or f"{host}{number}")
