"""Write the tables and the figure of the comparison from its runs; needs pandas and matplotlib.

    python examples/all_methods/summary.py RUNS OUT

RUNS holds the folders ``sweep``, ``sweep_adaptive``, ``chosen`` and ``sweep_personal``, of the
sweeps of these names.  OUT gets rates.csv (every method at every rate; diverged runs have no
score), scores.csv (every run at the chosen rate), personal.csv and all-methods.png.  Tables in
Markdown are printed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd

import hpcfl

matplotlib.use("agg")
import matplotlib.pyplot as plt

MODEL = 62_006 * 4  # bytes of a model
PERSONAL = {
    "test_accuracy": "global model, test set",
    "accuracy_mean": "clients, mean",
    "accuracy_worst_decile": "clients, worst decile",
}


def read(folders: Sequence[Path]) -> pd.DataFrame:
    """The runs of sweeps, with the label of each method."""
    runs = hpcfl.read_runs([str(folder) for folder in folders])
    names = runs.run.str.rpartition("/")[2]
    runs["method"] = names.str.replace(r"-(lr|seed)[\d.e-]+", "", regex=True)
    return runs


def last_ten(runs: pd.DataFrame, examples: str) -> pd.Series:
    """The mean accuracy of the rounds 91 to 100 of each run, in per cent; none of diverged ones."""
    logs = [hpcfl.read_log(directory) for directory in runs.directory]
    means = [100 * log[log["round"] > 90][f"{examples}_accuracy"].mean() for log in logs]
    return pd.Series(means, runs.index).where(~runs.diverged.astype(bool))


def rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Every method at every rate."""
    table = runs[["method", "local.lr"]].rename(columns={"local.lr": "lr"})
    table["validation"], table["test"] = last_ten(runs, "validation"), last_ten(runs, "test")
    return table.sort_values(["method", "lr"])


def scores(runs: pd.DataFrame) -> pd.DataFrame:
    """Every run at the chosen rate."""
    rounds = runs.rounds_done * runs["cohort.size"] * MODEL
    return pd.DataFrame(
        {
            "method": runs.method,
            "lr": runs["local.lr"],
            "seed": runs.seed,
            "accuracy": last_ten(runs, "test"),
            "down": runs.down_bytes / rounds,
            "up": runs.up_bytes / rounds,
        }
    ).sort_values(["method", "seed"])


def personal(runs: pd.DataFrame) -> pd.DataFrame:
    """Every run of the methods with models of the clients' own, after round 100; of FedAvg x."""
    table = runs[["method", "seed", "test_accuracy"]].copy()
    for key in ("accuracy_mean", "accuracy_worst_decile"):
        table[key] = runs[f"personal_{key}"].fillna(runs[f"client_{key}"])
    table[[*PERSONAL]] *= 100
    return table.sort_values(["method", "seed"])


def means(table: pd.DataFrame, key: str) -> pd.DataFrame:
    """A row a method: mean and standard deviation over seeds, the best first."""
    found = table.groupby("method")[key].agg(["mean", "std"])
    return found.sort_values("mean", ascending=False)


def figure(found: pd.DataFrame, path: Path) -> None:
    """The methods from the best to the worst, with the standard deviation over seeds."""
    _, axes = plt.subplots(figsize=(6, 0.19 * len(found) + 0.8))
    rows = range(len(found), 0, -1)
    axes.errorbar(found["mean"], rows, xerr=found["std"], fmt="o", markersize=4, capsize=2)
    axes.axvline(found["mean"]["fedavg"], color="0.7", linewidth=1, zorder=0, label="fedavg")
    axes.legend(loc="lower right")
    axes.set_yticks(rows, found.index, fontsize=7)
    axes.set_ylim(0, len(found) + 1)
    axes.grid(axis="x", color="0.9")
    axes.set_xlabel("test accuracy, mean of rounds 91 to 100, %")
    plt.tight_layout()
    plt.savefig(path, dpi=110)


def main(runs: Path, out: Path) -> None:
    """Write everything."""
    out.mkdir(parents=True, exist_ok=True)
    swept = read([runs / "sweep", runs / "sweep_adaptive"])
    rates(swept).to_csv(out / "rates.csv", index=False, float_format="%.6g")
    made = scores(read([runs / "chosen"]))
    made.to_csv(out / "scores.csv", index=False, float_format="%.6g")
    own = personal(read([runs / "sweep_personal"]))
    own.to_csv(out / "personal.csv", index=False, float_format="%.6g")
    found = means(made, "accuracy")
    figure(found, out / "all-methods.png")
    first = made.groupby("method").first()
    print("| method | rate | accuracy, % | down | up |\n|---|--:|--:|--:|--:|")
    for method, row in found.iterrows():
        cost = first.loc[method]
        accuracy = f"{row['mean']:.1f} +- {row['std']:.1f}"
        print(f"| {method} | {cost.lr:g} | {accuracy} | {cost.down:.2f} | {cost.up:.2f} |")
    tested = {key: means(own, key) for key in PERSONAL}
    print("\n| personal |", " | ".join(PERSONAL.values()), "|\n|---|" + "--:|" * len(PERSONAL))
    for method in tested["accuracy_mean"].index:
        rows = [tested[key].loc[method] for key in PERSONAL]
        cells = [f"{row['mean']:.1f} +- {row['std']:.1f}" for row in rows]
        print(f"| {method} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
