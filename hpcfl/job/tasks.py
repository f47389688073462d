"""Define the job's key ``task``: names for the data and the model of published experiments."""

from collections.abc import Mapping
from typing import Any

TASKS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "cifar10-cnn": {"data": {"kind": "cifar10"}, "model": {"name": "cnn_pfl"}},
    "cifar10-lenet": {"data": {"kind": "cifar10"}, "model": {"name": "lenet"}},
    "cifar10-resnet18": {"data": {"kind": "cifar10"}, "model": {"name": "resnet18"}},
    "cifar10-resnet20": {
        "data": {"kind": "cifar10"},
        "model": {"name": "resnet20", "random": "kaiming"},
    },
    "cifar100-lenet": {"data": {"kind": "cifar100"}, "model": {"name": "lenet"}},
    "cifar100-resnet18": {"data": {"kind": "cifar100"}, "model": {"name": "resnet18"}},
    "cifar100-resnet20": {
        "data": {"kind": "cifar100"},
        "model": {"name": "resnet20", "random": "kaiming"},
    },
    "concrete": {"data": {"kind": "concrete"}, "model": {"name": "linear"}},
    "digits": {"data": {"kind": "digits"}, "model": {"name": "linear"}},
    "emnist-cnn": {"data": {"kind": "emnist"}, "model": {"name": "cnn_fedavg"}},
    "emnist-logistic": {"data": {"kind": "emnist"}, "model": {"name": "logistic"}},
    "fashion-mnist-cnn": {"data": {"kind": "fashion_mnist"}, "model": {"name": "cnn_fedavg"}},
    "inaturalist-mobilenetv2": {"data": {"kind": "inaturalist"}, "model": {"name": "mobilenet_v2"}},
    "landmarks-mobilenetv2": {"data": {"kind": "landmarks"}, "model": {"name": "mobilenet_v2"}},
    "mnist-cnn": {"data": {"kind": "mnist"}, "model": {"name": "cnn_fedavg"}},
    "quadratics": {"data": {"kind": "quadratics"}, "model": {"name": "point", "start": 1.0}},
    "shakespeare": {"data": {"kind": "shakespeare"}, "model": {"name": "char_lstm"}},
    "stackoverflow": {"data": {"kind": "stackoverflow"}, "model": {"name": "word_lstm"}},
    "stackoverflow-last": {
        "data": {"kind": "stackoverflow", "predict": "last"},
        "model": {"name": "word_lstm", "predict": "last"},
    },
    "tinyimagenet-resnet18": {"data": {"kind": "tiny_imagenet"}, "model": {"name": "resnet18"}},
}
"""The sections of each task; the job's own ``data`` and ``model`` sections override their keys."""
