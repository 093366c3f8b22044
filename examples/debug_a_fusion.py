r"""Why did a fusion write that? What decided for each token, who cost what, and what to try next.

    python examples/debug_a_fusion.py --draft http://gpu1:8080 --assistant http://gpu2:8080 "Once upon a time"
    python examples/debug_a_fusion.py --result bad.json           # what `cosd fuse --json` or model_dump_json() wrote

The first way asks the assistant about everything (``ask="all"``): that changes no answer, and shows what it would have
said where nobody needed to ask it. Then play with ``--alpha`` (a higher one asks more often), ``--beta`` (a lower one
trusts the assistant more) and ``--unit``, and swap the two servers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cosd_api import CustomVerifier, FusedToken, FusionResult, RuleVerifier, fuse_sync
from cosd_providers import ProviderError

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"  # for the bundled models
TOO_SURE = 0.95  # an alpha above this would ask nearly everywhere


def contestable(result: FusionResult, token: FusedToken) -> bool:
    """Whether some answer of an assistant could have changed what the draft wrote there."""
    verifier, p = result.settings.verifier, token.draft_prob
    return p is not None and not isinstance(verifier, CustomVerifier) and verifier.contestable(p)


def rows(result: FusionResult) -> Iterator[str]:
    """Each token: how sure the draft and the assistant were, and what decided between them."""
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
    """What may help, by what is seen in the result: things to try, no cures."""
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
                yield f"{change} takes {said.text!r} in place of {token.text!r}; what follows may then be another text"
                break  # of what is said after that word nothing is known
    if not any(contestable(result, token) for token in result.tokens):
        yield "nothing that the assistant said could count: raise alpha, lower beta, or let the other model draft"
    if result.settings.ask != "all":
        yield 'ask="all" shows what the assistant would have said at the tokens that nobody needed to ask about'
    if result.acceptance_rate < 0.7:
        yield "much was replaced, which costs time: if it reads no better, lower alpha; else let the assistant draft"
    if any(token.asked and not token.decisions for token in result.tokens):
        other = "word" if unit == "token" else "token"
        yield f"unit={unit!r} found nothing to compare at some tokens; unit={other!r} judges other stretches of text"
    if result.finish_reason != "stop":
        yield f"the answer is not whole: {result.stop_reason}"


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
        raise ValueError(f"{path} holds no result: cosd fuse --json and model_dump_json() write one") from None


def main() -> None:
    parser = argparse.ArgumentParser(description="What decided for each token of a fusion, and what to try.")
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="raw text to go on from")
    parser.add_argument("--result", type=Path, metavar="FILE", help="a result as JSON; then no server is asked")
    for role in ("draft", "assistant"):
        url = os.environ.get(f"COSD_{role.upper()}_URL")
        parser.add_argument(f"--{role}", metavar="URL", default=url, help=f"a server; or set COSD_{role.upper()}_URL")
    parser.add_argument("--alpha", type=float, default=0.5, help="the draft is unsure below it (0.5)")
    parser.add_argument("--beta", type=float, default=0.5, help="the assistant is to be surer than this x draft (0.5)")
    parser.add_argument("--unit", choices=["token", "word"], help="what is judged together")
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
