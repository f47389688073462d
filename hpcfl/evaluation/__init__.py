"""Evaluate models on the test set and on the clients' data, spread over the ranks.

``test_loss``, ``test_accuracy``, ``test_top5_accuracy`` (of more than 5 classes): the test set.
Of texts the loss is the mean over all labels that are no padding; accuracies, these and those
below, leave out the special tokens too (``hpcfl.data.vocabulary``), and so clients that have
nothing else.

``objective`` (``evaluate.train``): sum_i p_i f_i, the global model's mean loss f_i over each
client's training examples, p_i the job's weights over the whole population.

``client_accuracy_*`` (``evaluate.clients``): the global model on each client's own examples,
those that ``data.holdout`` sets aside if it is given, its training examples if not.
``own_accuracy_*`` (``evaluate.own``): each client's own last local model on the same examples, of
the ``own_clients`` clients that have one.  ``_mean`` is the plain mean over clients,
``_worst_decile`` the mean over the tenth of them that fare worst, floor(n / 10) but at least one.
"""

from hpcfl.evaluation.clients import Clients
from hpcfl.evaluation.config import Evaluate
from hpcfl.evaluation.scores import Evaluation

__all__ = ["Clients", "Evaluate", "Evaluation"]
