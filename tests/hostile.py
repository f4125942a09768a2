"""Names that a site might choose to do harm, or by accident."""

NAMES = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "' onmouseover='window.hacked = 1' x='",
    "</title></svg></style><script>window.hacked = 1</script>",
    "{{version}} {{script}}",
    "--><!-- ]]> <![CDATA[",
    "&lt;b&gt; &amp;amp; &#60;",
    "javascript:window.hacked=1",
    "\u202egnirts desrever",
    "ÅÄÖ 客户 🏥",
    "a" * 60,
    "https://example.org/x.png",
)
