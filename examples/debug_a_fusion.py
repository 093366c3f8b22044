r"""Explain a fusion's answer: the decision for each token, the cost of each endpoint, and what to try next.

    python examples/debug_a_fusion.py --draft http://gpu1:8080 --assistant http://gpu2:8080 "Once upon a time"
    python examples/debug_a_fusion.py --result bad.json           # from `cosd fuse --json` or model_dump_json()

The first form asks the assistant about every place (``ask="all"``). This does not change the answer, but shows the
assistant's text everywhere. Next, try other values of ``--alpha`` (a higher alpha asks more often), ``--beta`` (a lower
beta trusts the assistant more) and ``--unit``, and swap the two servers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cosd_api import FusionResult, RuleVerifier, fuse_sync
from cosd_api.types import CustomVerifier, FusedToken
from cosd_providers import ProviderError

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"  # for the bundled models
TOO_SURE = 0.95  # with an alpha above this, nearly every token would be asked about


def contestable(result: FusionResult, token: FusedToken) -> bool:
    """True if an assistant's answer could have changed the draft's token."""
    verifier, p = result.settings.verifier, token.draft_prob
    if p is None or verifier is None or isinstance(verifier, CustomVerifier):
        return False
    return verifier.contestable(p)


def rows(result: FusionResult) -> Iterator[str]:
    """Yield a line for each token, with both probabilities and the decision."""
    for token in result.tokens:
        mark = "!" if token.source != "draft" else "?" if contestable(result, token) else " "
        p, q = (f"{prob:.4f}" if prob is not None else "-" for prob in (token.draft_prob, token.assistant_prob))
        words = ["(end)" if token.end else repr(token.text)]
        if token.replaced is not None:
            words.append(f"{token.source}'s, for the draft's {token.replaced!r}: {token.reason}")
        elif token.source == "draft":
            words += [f"not {said.text!r}: {said.reason}" for said in token.decisions if not said.agreed]
        if not token.verified:
            words.append("UNVERIFIED: an assistant was gone")
        yield f"{mark} {p:>6} {q:>6}  {'   '.join(words)}"


def hints(result: FusionResult) -> Iterator[str]:
    """Yield suggestions based on the result."""
    rule, unit = result.settings.verifier, result.settings.unit
    kept = [token for token in result.tokens if token.source == "draft"]
    against = [(token, said) for token in kept for said in token.decisions if not said.agreed]
    if isinstance(rule, RuleVerifier):
        for token, said in against:
            p, q = token.draft_prob or 0.0, said.prob or 0.0
            change = ""
            if rule.alpha <= p < TOO_SURE and q > rule.beta * p:
                change = f"an alpha above {p:.3g}"
            elif p < rule.alpha and q <= rule.beta * p:
                change = f"a beta below {q / p:.3g}"
            if change:
                yield f"{change} takes {said.text!r} in place of {token.text!r}, after which the text may change"
                break  # the text after the changed word is unknown
    if not any(contestable(result, token) for token in result.tokens):
        yield "no word of the assistant could count: raise alpha, lower beta, or let the other model draft"
    if result.settings.ask != "all":
        yield 'ask="all" shows the assistant\'s text also at the tokens about which it was not asked'
    if result.acceptance_rate is not None and result.acceptance_rate < 0.7:
        yield "many replacements cost time: if the answer is no better, lower alpha; else let the assistant draft"
    if unit == "token" and any(token.asked and not token.decisions for token in result.tokens):
        yield "unit='token' found nothing to compare at some tokens; unit='word' judges other stretches of text"
    if result.finish_reason != "stop":
        yield f"the answer is incomplete: {result.stop_reason}"


def report(result: FusionResult) -> None:
    unsure = sum(contestable(result, token) for token in result.tokens)
    print(f"{result.text}\n\n  draft assist  token (? contestable, ! replaced)")
    print("\n".join(rows(result)))
    print(f"\ntokens: {len(result.tokens)}, contestable: {unsure}, replacements: {result.replacements}")
    print(f"judged by {result.settings.verifier!r}, unit {result.settings.unit!r}")
    for endpoint in (result.draft, *result.assistants):
        cost, model = result.usage[endpoint.name], f"{endpoint.model} on {endpoint.engine}"
        busy = f"busy for {cost.busy_seconds:.2f} s of {result.timings.total:.2f}"
        print(f"{endpoint.name} ({model}): requests {cost.requests}, tokens billed {cost.billed_tokens}, {busy}")
    for kind, lines in (("warning", result.warnings), ("try", dict.fromkeys(hints(result)))):
        print("".join(f"{kind}: {line}\n" for line in lines), end="")


def read(path: Path) -> FusionResult:
    try:
        return FusionResult.model_validate_json(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path} is not a result: cosd fuse --json and model_dump_json() write one") from None


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the decision for each token of a fusion, and what to try next.")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="raw text to continue")
    parser.add_argument("--result", type=Path, metavar="FILE", help="a result as JSON, instead of asking servers")
    for role in ("draft", "assistant"):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        parser.add_argument(f"--{role}", metavar="URL", default=url, help=f"a server; or set COSD_{role.upper()}_URL")
    rule = RuleVerifier()
    unsure, surer = "the draft is unsure below this", "the assistant must be more confident than this x the draft"
    parser.add_argument("--alpha", type=float, default=rule.alpha, help=f"{unsure} (%(default)g)")
    parser.add_argument("--beta", type=float, default=rule.beta, help=f"{surer} (%(default)g)")
    parser.add_argument("--unit", choices=["token", "word"], help="the unit that is judged")
    args = parser.parse_args()
    if args.result is None and not (args.draft and args.assistant):
        parser.error("give --draft and --assistant, or --result")
    try:
        if args.result is not None:
            report(read(args.result))
        else:
            rule = RuleVerifier(alpha=args.alpha, beta=args.beta)
            servers = {"draft": args.draft, "assistant": args.assistant}
            report(fuse_sync(args.prompt, verifier=rule, unit=args.unit, ask="all", **servers))
    except (ProviderError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
