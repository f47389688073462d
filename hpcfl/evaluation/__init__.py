"""Evaluate models on the test set and on the clients' data, divided among the ranks.

``test_loss``, ``test_accuracy``, ``test_top5_accuracy`` (for more than 5 classes): the global model
on the test set.  ``validation_loss`` and its accuracies: the same on the examples that
``data.validation`` keeps.  For texts the loss is the mean over all labels but padding; accuracies,
here and below, also skip the special tokens (``hpcfl.data.vocabulary``), and clients without other
labels.

``train_objective`` (``evaluate.train``): sum_i p_i f_i, where f_i is the global model's mean loss
over client i's training examples and p_i the client's share of the job's weights, over all clients.

``client_accuracy_*`` (``evaluate.clients``): the global model on each client's examples: those that
``data.holdout`` sets aside; without it the client's own test examples, where the data says whose
they are; else its training examples.
``local_model_accuracy_*`` (``evaluate.local_models``): each client's last local model on the same
examples, over the ``local_model_clients`` clients that have one.  ``_mean`` is the plain mean over
clients, ``_std`` their standard deviation (the root of the mean squared distance from the mean),
``_worst_decile`` and ``_best_decile`` the means over the worst and the best floor(n / 10) of them,
at least one.

``personal_accuracy`` and ``personal_loss`` (``evaluate.personal``): each client's own model on the
same examples, over all of them together; ``personal_accuracy_mean`` and its kind, over all clients
that have such examples.  ``personal_validation_accuracy`` and ``personal_validation_loss``: on
those of its examples that ``data.validation`` keeps.  Where the method makes such models, these are
the scores that the run counts by (``hpcfl.runs.run_score``).
A client that never took part has its first state, and so a model.  With
``evaluate.personal.steps`` it is scored after so many local steps, which nothing else sees.

Metrics of the user's (``evaluate.metrics``, ``hpcfl.evaluation.user_metrics``): ``test_NAME`` and
``validation_NAME``; ``client_NAME_*``, ``local_model_NAME_*`` and ``personal_NAME_*`` where the
scores of clients are computed, with ``_mean``, ``_std``, ``_lowest_decile`` and
``_highest_decile``.
"""
