"""Plot which clients hold which classes."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfl.tools.report.plots.figure import COLOURS, new_figure, save


def plot_partition(counts: NDArray[np.int64], path: Path) -> None:
    """Draw the number of examples of each client and, for a classification, their classes.

    Each class is a row and each client a column; the colour is the share of the class among the
    client's examples.  This stays readable with a hundred classes or thousands of clients, unlike
    stacked bars.

    Args:
        counts: examples by client and class [N, classes], or by client alone [N].
        path: the file to write, which ``check_plot`` accepts.

    Raises:
        DiskError: the disk is full or fails.
        JobError: the file cannot be written.
    """
    from matplotlib.colors import PowerNorm

    if counts.ndim == 1:
        sizes = np.sort(counts)[::-1]
        figure, (axes,) = new_figure(7.0, 3.0)
        axes.set_xlabel("clients, the largest first")
    else:
        sizes = counts.sum(axis=1)
        height = 2.2 + min(4.0, 0.9 + 0.18 * counts.shape[1])
        figure, (axes,) = new_figure(7.0, height)
        axes.remove()
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        shares = counts / np.maximum(sizes, 1)[:, None]
        # The square root makes a share of a few percent visibly different from none.
        image = below.imshow(
            shares.T, aspect="auto", origin="lower", cmap="Blues", norm=PowerNorm(0.5, 0, 1)
        )
        below.set_xlabel("client")
        below.set_ylabel("class")
        below.yaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=[axes, below], label="share of the client's examples")
    axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=COLOURS[0])
    axes.set_ylim(0, None)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylabel("examples")
    axes.set_title(
        f"{len(sizes)} clients, {sizes.sum()} examples: {sizes.min()} to {sizes.max()} a client",
        fontsize="medium",
    )
    save(figure, [path])
