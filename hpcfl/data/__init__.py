"""Data sets, and their partition into clients."""

from collections.abc import Mapping

from hpcfl.data.base import DataConfig
from hpcfl.io.lazy_classes import LazyClasses

SOURCES: Mapping[str, type[DataConfig]] = LazyClasses(
    "hpcfl.data.sources",
    {
        "arrays": "Arrays",
        "cifar10": "Cifar10",
        "cifar100": "Cifar100",
        "concrete": "Concrete",
        "digits": "Digits",
        "emnist": "Emnist",
        "fashion_mnist": "FashionMnist",
        "huggingface": "Huggingface",
        "image_folder": "ImageFolder",
        "inaturalist": "INaturalist",
        "landmarks": "Landmarks",
        "leaf": "Leaf",
        "mnist": "Mnist",
        "quadratics": "Quadratics",
        "shakespeare": "Shakespeare",
        "stackoverflow": "StackOverflow",
        "table": "Table",
        "text": "Text",
        "tff": "Tff",
        "tiny_imagenet": "TinyImageNet",
    },
)
"""The data sets a job can name as ``data.kind``."""
