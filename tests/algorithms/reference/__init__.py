"""Every method once more, in plain numpy float64, from the papers' definitions.

Nothing here knows hpcfl's interface; only the order of mini-batches is taken from it.  A method
takes a setting and the keys of its job's ``algorithm`` section, and returns [T + 1, P], the model
before and after every round.
"""

from collections.abc import Callable, Mapping

from tests.algorithms.play import Array
from tests.algorithms.reference.adaptive import fedadamw, fedlada, fedmuon
from tests.algorithms.reference.averaging import (
    fedacg,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedexp,
    fedinit,
    fednova,
    fedprox,
    fedsam,
    fedswa,
    fedvarp,
    fedyogi,
)
from tests.algorithms.reference.baselines import centralized, server_only
from tests.algorithms.reference.compressed import dpfedavg, ef21, qsgd, randk, topk
from tests.algorithms.reference.corrected import (
    adabest,
    feddyn,
    fedmoswa,
    mime,
    mimeadam,
    mimelite,
    mimeliteadam,
    mimelitemom,
    mimemom,
    mimemvr,
    scaffold,
)
from tests.algorithms.reference.local_sgd import diloco, slowmo, streaming_diloco
from tests.algorithms.reference.logits import fedlc, fedntd
from tests.algorithms.reference.momentum import (
    fedadc,
    fedcm,
    fedhbm,
    fedmim,
    ghb,
    localghb,
    mofedsam,
)
from tests.algorithms.reference.personal import ditto, fedbn, fedper, fedrep
from tests.algorithms.reference.setting import Setting
from tests.algorithms.reference.sharpness import (
    fedgamma,
    fedlesam,
    fedlesam_d,
    fedlesam_s,
    fedsmoo,
    fedspeed,
)

__all__ = ["METHODS", "Setting"]

METHODS: Mapping[str, Callable[..., Array]] = {
    method.__name__: method
    for method in (
        adabest,
        centralized,
        diloco,
        ditto,
        dpfedavg,
        ef21,
        fedacg,
        fedadagrad,
        fedadam,
        fedadamw,
        fedadc,
        fedavg,
        fedavgm,
        fedbn,
        fedcm,
        feddyn,
        fedexp,
        fedgamma,
        fedhbm,
        fedinit,
        fedlada,
        fedlc,
        fedlesam,
        fedlesam_d,
        fedlesam_s,
        fedmim,
        fedmoswa,
        fedmuon,
        fednova,
        fedntd,
        fedper,
        fedprox,
        fedrep,
        fedsam,
        fedsmoo,
        fedspeed,
        fedswa,
        fedvarp,
        fedyogi,
        ghb,
        localghb,
        mime,
        mimeadam,
        mimelite,
        mimeliteadam,
        mimelitemom,
        mimemom,
        mimemvr,
        mofedsam,
        qsgd,
        randk,
        scaffold,
        server_only,
        slowmo,
        streaming_diloco,
        topk,
    )
}
