"""The JSON schema of a job accepts the jobs of the repository, and refuses mistakes."""

import re
from copy import deepcopy

import pytest
import yaml

from hpcfl.algorithms import ALGORITHMS
from hpcfl.job.json_schema import job_schema
from tests.jobs.every import JOBS, name

SCHEMA = job_schema()
TYPES = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
    "object": dict,
    "string": str,
}
UNDERSTOOD = {
    *("$schema", "$defs", "$ref", "title", "description", "default", "discriminator"),
    *("type", "enum", "const", "anyOf", "oneOf", "pattern", "required", "properties"),
    *("additionalProperties", "items", "minItems", "maxItems", "prefixItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
JOB = {
    "task": "digits",
    "data": {"clients": 10, "partition": {"kind": "dirichlet", "alpha": 0.0}},
    "cohort": {"kind": "uniform", "size": 2},
    "algorithm": {"name": "fedhbm", "beta": 1.0},
    "local": {"lr": 0.1, "batch_size": 16},
    "rounds": 100,
}


def accepts(value, schema=SCHEMA):
    """Whether a value is valid: the part of JSON Schema that the schema of a job makes use of."""
    assert set(schema) <= UNDERSTOOD
    if "$ref" in schema:
        return accepts(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    kind = schema.get("type")
    if kind and (
        not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return False
    checks = [
        value in schema.get("enum", [value]),
        value == schema.get("const", value),
        "anyOf" not in schema or any(accepts(value, one) for one in schema["anyOf"]),
        "oneOf" not in schema or sum(accepts(value, one) for one in schema["oneOf"]) == 1,
    ]
    if isinstance(value, str):
        checks.append(re.search(schema.get("pattern", ""), value) is not None)
    if isinstance(value, int | float):
        checks += [
            value >= schema.get("minimum", value),
            value <= schema.get("maximum", value),
            value > schema.get("exclusiveMinimum", value - 1),
            value < schema.get("exclusiveMaximum", value + 1),
        ]
    if isinstance(value, list):
        checks.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
        checks += [accepts(item, schema.get("items", {})) for item in value]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        checks.append(set(schema.get("required", ())) <= set(value))
        checks.append(schema.get("additionalProperties", True) or set(value) <= set(known))
        checks += [accepts(below, known[key]) for key, below in value.items() if key in known]
    return all(checks)


def changed(dotted, value):
    """The job with one key changed, or without it where the value is None."""
    job = deepcopy(JOB)
    *above, key = dotted.split(".")
    section = job
    for part in above:
        section = section[part]
    section[key] = value
    if value is None:
        del section[key]
    return job


@pytest.mark.parametrize("path", JOBS, ids=name)
def test_every_job_is_accepted(path):
    assert accepts(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_is_known(algorithm):
    """By its own keys: the branch for classes of a user takes dotted paths alone."""
    required = {"dpfedavg": {"clip": 1.0, "noise": 1.0}, "streaming_diloco": {"fragments": 2}}
    keys = {"name": algorithm, **required.get(algorithm, {})}
    assert accepts(changed("algorithm", keys))
    assert not accepts(changed("algorithm", {**keys, "no_such_key": 1}))


@pytest.mark.parametrize("key", ["cohort", "algorithm", "local", "local.lr", "rounds", "task"])
def test_required_keys(key):
    assert accepts(JOB)
    assert not accepts(changed(key, None))


@pytest.mark.parametrize(
    "key, value",
    [
        ("ronds", 4),
        ("rounds", 0),
        ("rounds", "4"),
        ("task", "digit"),
        ("algorithm.name", "fedhmb"),
        ("algorithm.bet", 1.0),
        ("algorithm.first", "none"),
        ("local.lr", "1e-3"),
        ("data.partition.kind", "dirichlt"),
        ("data.partition.alpha", -1.0),
        ("data.partition", {"alpha": 0.3}),
        ("cohort", {"size": 2}),
        ("model", {"name": "lenets"}),
    ],
)
def test_mistakes_are_refused(key, value):
    assert not accepts(changed(key, value))


@pytest.mark.parametrize(
    "key, value",
    [
        ("algorithm", {"name": "mine.Method", "any_key": 3}),
        ("block_size", None),
        ("data.partition", {"kind": "iid"}),
        ("local.batch_size", "full"),
        ("model", {"name": "lenet"}),
        ("local.lr", 1),
    ],
)
def test_what_else_a_job_may_say(key, value):
    assert accepts(changed(key, value))


def test_keys_are_described():
    fedhbm = SCHEMA["$defs"]["algorithm.fedhbm"]["properties"]
    assert fedhbm["beta"]["description"] == "Momentum factor."
    assert fedhbm["beta"]["default"] == 1.0
    assert SCHEMA["properties"]["rounds"]["description"] == "T, the rounds of the run."
