"""The page's looks: light and dark, readable on a phone and on paper, without a script or anything from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --ink:#1d2430; --soft:#5c6675; --paper:#ffffff; --panel:#f5f7fa; --edge:#dde3ea;
  --line:#2f6fde; --area:#2f6fde22; --good:#13795b; --bad:#b3261e; --warn:#8a5a00; --goodbg:#e2f4ec; --badbg:#fde8e6;
  --warnbg:#fdf1d8; --shade:#00000026; }
@media (prefers-color-scheme: dark) { :root { --ink:#e3e8ef; --soft:#9aa6b6; --paper:#12161c; --panel:#1a2029;
  --edge:#2c3542; --line:#79a8ff; --area:#79a8ff22; --good:#6fd3a8; --bad:#ff9a91; --warn:#f0c064; --goodbg:#12382b;
  --badbg:#43191a; --warnbg:#3c2e10; --shade:#000000b0; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--paper); color:var(--ink); font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
  "Noto Sans",sans-serif; }
main { max-width:1080px; margin:0 auto; padding:28px 20px 60px; }
h1 { font-size:1.6rem; margin:0 0 2px; overflow-wrap:anywhere; }
h2 { font-size:1.12rem; margin:36px 0 10px; }
p { margin:6px 0; }
.sub, .note, .more { color:var(--soft); font-size:.88rem; }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(124px,1fr)); gap:10px; margin:20px 0 4px; }
.tile { background:var(--panel); border:1px solid var(--edge); border-radius:8px; padding:10px 12px; }
.tile b { display:block; font-size:1.35rem; font-variant-numeric:tabular-nums; line-height:1.25;
  overflow-wrap:anywhere; }
.tile span { color:var(--soft); font-size:.82rem; }
.charts { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr)); gap:14px; }
figure { margin:0; background:var(--panel); border:1px solid var(--edge); border-radius:8px; padding:10px 12px 4px; }
figcaption { font-size:.88rem; font-weight:600; margin-bottom:4px; }
svg { display:block; width:100%; height:auto; overflow:visible; }
svg text { fill:var(--soft); font-size:11.5px; font-variant-numeric:tabular-nums; }
svg .grid { stroke:var(--edge); } svg .line { fill:none; stroke:var(--line); stroke-width:2; stroke-linejoin:round; }
svg .area { fill:var(--area); } svg .dot { fill:var(--line); }
.wide { overflow-x:auto; background:linear-gradient(to right,var(--paper) 40%,transparent) 0 0/40px 100%,
  linear-gradient(to left,var(--paper) 40%,transparent) 100% 0/40px 100%,
  linear-gradient(to right,var(--shade),transparent) 0 0/12px 100%,
  linear-gradient(to left,var(--shade),transparent) 100% 0/12px 100%; background-repeat:no-repeat;
  background-attachment:local,local,scroll,scroll; }
table { border-collapse:collapse; width:100%; font-size:.92rem; }
th, td { text-align:left; padding:5px 14px 5px 0; border-bottom:1px solid var(--edge); vertical-align:top;
  overflow-wrap:anywhere; }
th { color:var(--soft); font-weight:600; font-size:.82rem; overflow-wrap:normal; }
td.n, th.n { text-align:right; font-variant-numeric:tabular-nums; } td.n { white-space:nowrap; }
td.b { min-width:90px; }
td.b .bar { margin-top:.42rem; }
td:first-child { min-width:10.5rem; }
tr.above td { border-bottom:0; padding-bottom:0; } tr.below td { padding-top:1px; color:var(--soft); font-size:.86rem; }
tr.below p { margin:0; }
.small { display:block; color:var(--soft); font-size:.84rem; }
.bar { display:block; height:8px; border-radius:4px; background:var(--edge); }
.bar span { display:block; height:8px; border-radius:4px; background:var(--line); min-width:2px; }
details { border:1px solid var(--edge); border-radius:8px; margin:8px 0; background:var(--panel); }
summary { cursor:pointer; padding:8px 12px; display:flex; flex-wrap:wrap; gap:4px 12px; align-items:baseline; }
summary::before { content:"▸"; color:var(--soft); } details[open] > summary::before { content:"▾"; }
summary::-webkit-details-marker { display:none; }
summary .task { font-weight:600; } summary .why { margin-left:auto; }
.pill { border-radius:99px; padding:1px 9px; font-size:.82rem; white-space:nowrap; }
.good { color:var(--good); background:var(--goodbg); } .bad { color:var(--bad); background:var(--badbg); }
.warn { color:var(--warn); background:var(--warnbg); } .plain { color:var(--soft); background:var(--edge); }
.body { padding:4px 14px 14px; border-top:1px solid var(--edge); }
.turn { margin:12px 0 0; border-left:3px solid var(--edge); padding-left:12px; }
.turn.model { border-color:var(--line); } .turn.error { border-color:var(--bad); }
.who span { min-width:0; overflow-wrap:anywhere; }
.who { color:var(--soft); font-size:.8rem; font-weight:600; display:flex; gap:10px; align-items:baseline;
  flex-wrap:wrap; }
pre { margin:3px 0; white-space:pre-wrap; overflow-wrap:anywhere; font:.86rem/1.45 ui-monospace,"SF Mono",Menlo,
  Consolas,"DejaVu Sans Mono",monospace; unicode-bidi:plaintext; }
pre.said { font:inherit; }
img { display:block; max-width:100%; max-height:22rem; min-height:3rem; margin:6px 0; border:1px solid var(--edge);
  border-radius:4px; image-rendering:auto; }
@media (max-width:560px) { main { padding:20px 14px 40px; } table { font-size:.86rem; }
  th, td { padding-right:10px; } th.b, td.b { display:none; } svg text { font-size:16px; } }
@media print { details { break-inside:avoid; } }
"""
