"""An alternative to fusing: a router that chooses one specialist by the words of a question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from benchmarks.real_pair.questions import training_questions

__all__ = ["ROUTER", "router"]

ROUTER = "router on words"


@cache
def router() -> Callable[[str], bool]:
    """A function that decides whether `products` should answer a question, by logistic regression on its words."""
    from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - slow to import
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415

    several: Mapping[str, str] = training_questions(2000)
    model = make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    model.fit([*several], [family == "facts" for family in several.values()])

    def chosen(question: str) -> bool:
        return bool(model.predict([question])[0])

    return chosen
