import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvbench.records import Protocol, Record, content_hash
from simulated import make_environment, make_protocol, make_record

OTHER = {"question": "after", "binary": True, "chunk": 512, "subtasks": ("vt",)}


@pytest.mark.parametrize("field", Protocol.model_fields)
def test_every_field_of_a_protocol_decides_its_hash(field: str) -> None:
    protocol = make_protocol()
    value = getattr(protocol, field)
    other = OTHER.get(field, value + 1 if isinstance(value, int) else f"{value}2")
    assert protocol.model_copy(update={field: other}).hash != protocol.hash


def test_a_protocol_keeps_its_hash_on_disk() -> None:
    protocol = make_protocol()
    assert Protocol.model_validate_json(protocol.model_dump_json()).hash == protocol.hash
    assert make_environment().hash == make_environment().hash


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.booleans()))
def test_the_order_of_keys_does_not_decide_a_hash(value: dict[str, object]) -> None:
    assert content_hash(dict(reversed(value.items()))) == content_hash(value)


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_different_contents_have_different_hashes(left: list[str], right: list[str]) -> None:
    assert (content_hash(left) == content_hash(right)) == (left == right)


@pytest.mark.parametrize("score", [0.1, None])
def test_a_record_survives_being_written(score: float | None) -> None:
    record = make_record(score=score)
    assert Record.model_validate_json(record.model_dump_json(), strict=True) == record


@pytest.mark.parametrize("change", [{"budget_tokens": 0}, {"status": "fine"}, {"stopped": "never"}, {"surprise": 1}])
def test_a_record_out_of_its_schema_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_record(**change)
