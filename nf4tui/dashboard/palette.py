"""The dashboard's colours: Okabe and Ito's set, which people with any colour vision can tell apart.

Nothing is said by colour alone: states have words and symbols, curves have markers, gaps have marks.
"""

from textual.theme import Theme

SKY, ORANGE, GREEN, YELLOW, VERMILLION, PURPLE = (
    "#56b4e9",
    "#e69f00",
    "#2fbf93",
    "#f0e442",
    "#ff7043",
    "#cc79a7",
)
TEXT, MUTED, FAINT, LINE = "#d7dce2", "#8b949e", "#3b434d", "#39424d"

CURVES = (SKY, ORANGE)  # of a chart, in order
STATES = {
    "starting": MUTED,
    "running": GREEN,
    "paused": YELLOW,
    "stopping": YELLOW,
    "stopped": MUTED,
    "done": GREEN,
    "failed": VERMILLION,
    "crashed": VERMILLION,
}

THEME = Theme(
    name="nf4tui",
    dark=True,
    primary=SKY,
    secondary=ORANGE,
    accent=SKY,
    foreground=TEXT,
    background="#0e1116",
    surface="#151a21",
    panel="#1d242d",
    success=GREEN,
    warning=YELLOW,
    error=VERMILLION,
    variables={
        "muted": MUTED,
        "faint": FAINT,
        "line": LINE,
        "curve-1": SKY,
        "curve-2": ORANGE,
        "resumed": PURPLE,
        "footer-background": "#151a21",
        "footer-key-foreground": SKY,
        "footer-description-foreground": TEXT,
    },
)
