"""What the server accepts: every fault has its verdict, nothing raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.intake import Kept, Replies, UpdateStore, Verdict, admit, check_update

LIKE = np.zeros((2, 3), np.float32)
GOOD = np.ones(3, np.float32)


def verdict_on(client: Any = 1, round: Any = 4, label: Any = 0, update: Any = GOOD) -> tuple[list[int], int]:
    """The verdicts on three clients when client 1 sends this and the others are fine, and the accepted rows."""
    replies = Replies([0, client, 2], [4, round, 4], [0, label, 1], [GOOD, update, GOOD])
    accepted = admit(replies, clients=3, clusters=2, round=4, like=LIKE)
    assert accepted.updates.shape == (len(accepted.clients), 3)
    assert np.isfinite(accepted.updates).all()
    return accepted.verdicts.tolist(), len(accepted.clients)


@pytest.mark.parametrize("label", [2, -1, 2**70, "0", None, 0.0, True, np.nan, [0]])
def test_labels(label: Any) -> None:
    assert verdict_on(label=label) == ([0, Verdict.WRONG_LABEL, 0], 2)


@pytest.mark.parametrize("round", [3, 5, -1, 2**70, "4", None, 4.0, True])
def test_rounds(round: Any) -> None:
    assert verdict_on(round=round) == ([0, Verdict.WRONG_ROUND, 0], 2)


@pytest.mark.parametrize("client", [3, -1, 2**70, "1", None, 1.5])
def test_unknown_clients(client: Any) -> None:
    assert verdict_on(client=client) == ([0, Verdict.SILENT, 0], 2)


@pytest.mark.parametrize(
    ("update", "fault"),
    [
        (np.array([1, np.nan, 1], np.float32), Verdict.NOT_FINITE),
        (np.array([1, -np.inf, 1], np.float32), Verdict.NOT_FINITE),
        (np.ones(2, np.float32), Verdict.WRONG_SHAPE),
        (np.ones((1, 3), np.float32), Verdict.WRONG_SHAPE),
        (np.float32(1), Verdict.WRONG_TYPE),
        (np.ones(3, np.float64), Verdict.WRONG_TYPE),
        (np.ones(3, np.complex64), Verdict.WRONG_TYPE),
        (np.array(["a", "b", "c"]), Verdict.WRONG_TYPE),
        (np.array([None, None, None]), Verdict.WRONG_TYPE),
        ([1.0, 1.0, 1.0], Verdict.WRONG_TYPE),
        (torch.ones(3), Verdict.WRONG_TYPE),
        (np.ma.masked_array([np.nan, 1, 1], mask=[1, 0, 0], dtype=np.float32), Verdict.WRONG_TYPE),
        ("text", Verdict.WRONG_TYPE),
        (None, Verdict.WRONG_TYPE),
        (b"\x00\xff", Verdict.WRONG_TYPE),
    ],
)
def test_updates(update: Any, fault: Verdict) -> None:
    assert verdict_on(update=update) == ([0, fault, 0], 2)


def test_verdicts_keep_their_numbers() -> None:
    names = "ACCEPTED SILENT UNKNOWN_CLIENT WRONG_ROUND DUPLICATE WRONG_LABEL WRONG_TYPE WRONG_SHAPE NOT_FINITE"
    names += " INCONSISTENT"
    assert [verdict.name for verdict in Verdict] == names.split()
    assert [verdict.value for verdict in Verdict] == list(range(10))


def test_the_first_reply_counts_and_a_second_is_recorded() -> None:
    replies = Replies([0, 0, 1, 1], [4] * 4, [0, 1, 9, 0], [GOOD, 2 * GOOD, GOOD, GOOD])
    accepted = admit(replies, clients=2, clusters=2, round=4, like=LIKE)
    assert accepted.verdicts.tolist() == [Verdict.DUPLICATE, Verdict.WRONG_LABEL]
    assert accepted.clients.tolist() == [0]
    assert np.array_equal(accepted.updates, GOOD[None])


def test_nobody_answers() -> None:
    accepted = admit(Replies([], [], [], []), clients=3, clusters=2, round=0, like=LIKE)
    assert accepted.verdicts.tolist() == [Verdict.SILENT] * 3
    assert accepted.updates.shape == (0, 3)


def test_arrays_and_lists_are_judged_alike(rng: np.random.Generator) -> None:
    updates = rng.standard_normal((5, 3)).astype(np.float32)
    updates[3, 1] = np.nan
    clients, rounds, labels = np.arange(5), np.full(5, 4), np.array([0, 1, 2, 1, 0])
    whole = admit(Replies(clients, rounds, labels, updates), clients=5, clusters=2, round=4, like=LIKE)
    single = admit(
        Replies(clients.tolist(), rounds.tolist(), labels.tolist(), list(updates)),
        clients=5, clusters=2, round=4, like=LIKE,
    )  # fmt: skip
    assert whole.verdicts.tolist() == [0, 0, Verdict.WRONG_LABEL, Verdict.NOT_FINITE, 0]
    for ours, theirs in zip(whole, single, strict=True):
        assert np.array_equal(ours, theirs)
    tensors = admit(
        Replies(clients, rounds, labels, torch.from_numpy(updates)),
        clients=5, clusters=2, round=4, like=torch.from_numpy(LIKE),
    )  # fmt: skip
    assert np.array_equal(tensors.verdicts, whole.verdicts)
    assert np.array_equal(tensors.updates.numpy(), whole.updates)


@given(st.permutations(range(5)))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    updates = np.arange(15, dtype=np.float32).reshape(5, 3)
    updates[3, 1] = np.nan
    labels, rounds = np.array([0, 1, 1, 1, 0]), np.full(5, 4)
    expected = admit(Replies(np.arange(5), rounds, labels, updates), clients=5, clusters=2, round=4, like=LIKE)
    as_arrays = Replies(np.array(order), rounds, labels[order], updates[order])
    as_messages = Replies(order, rounds.tolist(), labels[order].tolist(), list(updates[order]))
    for replies in (as_arrays, as_messages):
        accepted = admit(replies, clients=5, clusters=2, round=4, like=LIKE)
        assert accepted.clients.tolist() == [0, 1, 2, 4]
        for ours, theirs in zip(accepted, expected, strict=True):
            assert np.array_equal(ours, theirs)
    assert accepted.by_client(accepted.labels, -1).tolist() == [0, 1, 1, -1, 0]


@pytest.mark.parametrize(
    ("updates", "fault"),
    [
        (np.zeros((2, 5), np.float32), Verdict.WRONG_SHAPE),
        (np.zeros((2, 3, 1), np.float32), Verdict.WRONG_SHAPE),
        (np.zeros((2, 3), np.float64), Verdict.WRONG_TYPE),
        (np.array([GOOD, None], dtype=object)[[1, 1]], Verdict.WRONG_TYPE),
        (torch.zeros((2, 3)), Verdict.WRONG_TYPE),
    ],
)
def test_a_whole_array_of_the_wrong_kind(updates: Any, fault: Verdict) -> None:
    replies = Replies(np.arange(2), np.full(2, 4), np.zeros(2, np.int64), updates)
    accepted = admit(replies, clients=2, clusters=2, round=4, like=LIKE)
    assert accepted.verdicts.tolist() == [fault] * 2
    assert accepted.updates.shape == (0, 3)
    assert accepted.updates.dtype == np.float32


def test_labels_in_a_column_are_no_labels() -> None:
    replies = Replies(np.arange(2), np.full(2, 4), np.zeros((2, 1), np.int64), np.zeros((2, 3), np.float32))
    accepted = admit(replies, clients=2, clusters=2, round=4, like=LIKE)
    assert accepted.verdicts.tolist() == [Verdict.WRONG_LABEL] * 2


def test_tensors_that_are_not_plain() -> None:
    like = torch.zeros((2, 3))
    odd = [torch.zeros(3).to_sparse(), torch.zeros(3, device="meta"), torch.ones(3, requires_grad=True)]
    accepted = admit(Replies([0, 1, 2], [4] * 3, [0] * 3, odd), clients=3, clusters=2, round=4, like=like)
    assert accepted.verdicts.tolist() == [Verdict.WRONG_TYPE, Verdict.WRONG_TYPE, Verdict.ACCEPTED]
    assert not accepted.updates.requires_grad


def test_unknown_senders_are_counted() -> None:
    replies = Replies([0, 7, -1], [4] * 3, [0] * 3, [GOOD] * 3)
    assert admit(replies, clients=2, clusters=2, round=4, like=LIKE).unknown_senders == 2


def test_fields_of_different_length_are_a_mistake_of_the_transport() -> None:
    with pytest.raises(ValueError, match="as many clients"):
        Replies([0, 1], [4], [0], [GOOD])


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.integers(), max_size=3), st.just(GOOD), st.just(np.zeros(0)), st.just(np.array(0)),
    st.integers(0, 3), st.just(4),
)  # fmt: skip


@given(st.lists(st.tuples(anything, anything, anything, anything), max_size=8))
def test_nothing_that_arrives_raises(messages: list[tuple[Any, Any, Any, Any]]) -> None:
    fields = [list(field) for field in zip(*messages, strict=True)] if messages else [[], [], [], []]
    accepted = admit(Replies(*fields), clients=3, clusters=2, round=4, like=LIKE)
    assert len(accepted.clients) == len(set(accepted.clients.tolist())) <= 3
    assert np.all((accepted.labels >= 0) & (accepted.labels < 2))
    assert accepted.updates.shape == (len(accepted.clients), 3)
    assert accepted.updates.dtype == np.float32


@pytest.mark.parametrize(
    ("column", "place", "value"),
    [
        ("updates", (1, 2), np.nan),
        ("updates", (1, 2), np.inf),
        ("updates", (1, 2), 3e38),  # whose square is infinite
        ("updates", (0, 0), 0.5),  # nothing wrong
        ("labels", 1, -1),
        ("labels", 1, 2),
        ("rounds", 1, 3),
        ("clients", 1, 2),  # twice, and 1 not at all
        ("clients", 1, 3),
        ("clients", slice(None), [2, 0, 1]),
    ],
)
def test_a_table_is_judged_like_its_messages(column: str, place: Any, value: Any) -> None:
    """One fault at a time, none hidden by another: as arrays, which pass at once if they are in order, and as lists."""
    tables: dict[str, Any] = {
        "clients": np.arange(3), "rounds": np.full(3, 4), "labels": np.array([0, 1, 1]),
        "updates": np.ones((3, 3), np.float32),
    }  # fmt: skip
    tables[column][place] = value
    lists = {name: list(table) if name == "updates" else table.tolist() for name, table in tables.items()}
    with np.errstate(all="raise"):
        found, expected = (
            admit(Replies(**replies), clients=3, clusters=2, round=4, like=LIKE) for replies in (tables, lists)
        )
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours, theirs)
    assert not np.shares_memory(found.labels, tables["labels"])


@pytest.mark.parametrize("rows", [2, 4])
def test_a_table_with_too_few_or_too_many_rows(rows: int) -> None:
    replies = Replies(np.arange(rows), np.full(rows, 4), np.zeros(rows, dtype=int), np.ones((rows, 3), np.float32))
    accepted = admit(replies, clients=3, clusters=2, round=4, like=LIKE)
    assert accepted.clients.tolist() == [0, 1, 2][:rows]
    assert accepted.unknown_senders == max(0, rows - 3)


@pytest.mark.parametrize("like", [LIKE[0], LIKE[:, None, :], LIKE[None, None]])
def test_the_last_axis_of_the_example_is_that_of_updates(like: np.ndarray) -> None:
    for updates in (np.ones((2, 3), np.float32), [GOOD, GOOD]):
        replies = Replies(np.arange(2), np.full(2, 4), np.zeros(2, np.int64), updates)
        assert admit(replies, clients=2, clusters=1, round=4, like=like).verdicts.tolist() == [0, 0]


def test_a_table_in_another_layout_is_accepted() -> None:
    updates = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    replies = Replies(np.arange(2), np.full(2, 4), np.zeros(2, np.int64), updates)
    accepted = admit(replies, clients=2, clusters=2, round=4, like=LIKE)
    assert accepted.verdicts.tolist() == [0, 0]
    assert np.array_equal(accepted.updates, updates)


@pytest.mark.parametrize(
    "buffer", [np.zeros((3, 3)), np.zeros((3, 4), np.float32), np.zeros((1, 3), np.float32), torch.zeros((3, 3)), None]
)
def test_a_buffer_that_does_not_fit_is_not_used(buffer: Any) -> None:
    sent = [GOOD, 2 * GOOD, 3 * GOOD]
    replies = Replies([2, 0, 1], [4] * 3, [0] * 3, sent, buffer)
    accepted = admit(replies, clients=3, clusters=2, round=4, like=LIKE)
    assert type(accepted.updates) is np.ndarray
    assert accepted.updates.dtype == np.float32
    assert accepted.updates.tolist() == [[2] * 3, [3] * 3, [1] * 3]
    assert buffer is None or not buffer.any()


def test_a_buffer_that_fits_holds_the_updates() -> None:
    buffer = np.zeros((3, 3), np.float32)
    replies = Replies([2, 0], [4] * 2, [0] * 2, [GOOD, 2 * GOOD], buffer)
    accepted = admit(replies, clients=3, clusters=2, round=4, like=LIKE)
    assert accepted.updates.tolist() == buffer[:2].tolist() == [[2] * 3, [1] * 3]
    assert np.shares_memory(accepted.updates, buffer)


# --- updates that a store keeps -----------------------------------------------------------------------


class ListStore(UpdateStore):
    """Keeps updates in a list."""

    def begin(self, like: np.ndarray) -> None:
        self.like: np.ndarray = like
        self.updates: list[np.ndarray] = []

    def keep(self, update: Any) -> Kept:
        checks = check_update(update, self.like)
        if all(checks):
            self.updates.append(update)
        return Kept(*checks, len(self.updates) - 1 if all(checks) else -1, None)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        return np.stack([self.updates[number] for number in numbers])


def test_updates_in_a_store_get_the_verdicts_that_they_would_get_in_memory() -> None:
    store, like = ListStore(), np.zeros((2, 3))
    updates: list[Any] = [np.full(3, i, dtype=np.float64) for i in range(8)]
    updates[1], updates[2], updates[3], updates[4] = np.zeros(4), np.zeros(3, np.float32), np.full(3, np.nan), "x"
    store.begin(like)
    kept = [store.keep(update) for update in updates]
    fields = [5, 1, 2, 3, 4, 0, 6, 7], [7] * 8, [0, 0, 0, 0, 0, 1, 0, 9]
    inside = admit(Replies(*fields, updates), clients=8, clusters=2, round=7, like=like)
    outside = admit(Replies(*fields, kept, buffer=store), clients=8, clusters=2, round=7, like=like)
    assert outside.verdicts.tolist() == inside.verdicts.tolist()
    assert outside.clients.tolist() == inside.clients.tolist() == [0, 5, 6]
    assert outside.updates.tolist() == inside.updates.tolist() == [[5.0] * 3, [0.0] * 3, [6.0] * 3]
    assert set(inside.verdicts.tolist()) == {
        Verdict.ACCEPTED, Verdict.WRONG_SHAPE, Verdict.WRONG_TYPE, Verdict.NOT_FINITE, Verdict.WRONG_LABEL,
    }  # fmt: skip
