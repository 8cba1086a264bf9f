"""A small network that predicts the next letter, with hand-written gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shape:
    """The shape of the network and of its training."""

    letters: int
    context: int = 12
    embedding: int = 16
    hidden: int = 128
    rows: int = 64
    """Rows per rank and step."""
    rate: float = 0.06
    momentum: float = 0.9
    seed: int = 1


class Model:
    """Embedding, one hidden layer, softmax. Its state is one array, so one message can send it."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        wide = shape.context * shape.embedding
        sizes = dict(
            table=(shape.letters, shape.embedding),
            inner=(wide, shape.hidden),
            inner_bias=(shape.hidden,),
            outer=(shape.hidden, shape.letters),
            outer_bias=(shape.letters,),
        )
        count = sum(int(np.prod(size)) for size in sizes.values())
        self.state = np.zeros((2, count), np.float32)
        """[2, parameters]: parameters and momentum."""
        self.gradient = np.zeros(count, np.float32)
        self._weights = _views(self.state[0], sizes)
        self._slopes = _views(self.gradient, sizes)
        rng = np.random.default_rng(shape.seed)
        for name, view in self._weights.items():
            if not name.endswith("bias"):
                view[:] = rng.standard_normal(view.shape) / np.sqrt(max(view.shape[0], 1))

    def learn(self, letters: np.ndarray, follows: np.ndarray) -> float:
        """Returns the mean loss of a batch; writes its gradient to `gradient`."""
        weights, slopes = self._weights, self._slopes
        rows = len(letters)
        embedded = weights["table"][letters].reshape(rows, -1)
        hidden = np.tanh(embedded @ weights["inner"] + weights["inner_bias"])
        scores = hidden @ weights["outer"] + weights["outer_bias"]
        scores -= scores.max(1, keepdims=True)
        odds = np.exp(scores)
        odds /= odds.sum(1, keepdims=True)
        loss = -np.log(odds[np.arange(rows), follows]).mean()

        odds[np.arange(rows), follows] -= 1
        odds /= rows
        slopes["outer"][:] = hidden.T @ odds
        slopes["outer_bias"][:] = odds.sum(0)
        inner = (odds @ weights["outer"].T) * (1 - hidden * hidden)
        slopes["inner"][:] = embedded.T @ inner
        slopes["inner_bias"][:] = inner.sum(0)
        slopes["table"][:] = 0
        back = (inner @ weights["inner"].T).reshape(*letters.shape, -1)
        np.add.at(slopes["table"], letters, back)
        return float(loss)

    def step(self) -> None:
        """Updates the parameters by `gradient`."""
        parameters, momentum = self.state
        momentum *= np.float32(self.shape.momentum)
        momentum -= np.float32(self.shape.rate) * self.gradient
        parameters += momentum


def _views(vector: np.ndarray, sizes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    views, begin = {}, 0
    for name, size in sizes.items():
        count = int(np.prod(size))
        views[name] = vector[begin : begin + count].reshape(size)
        begin += count
    return views
