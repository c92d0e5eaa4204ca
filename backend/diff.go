package backend

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Diff is what an Execution Workspace changed, since the commit that it was made of.
type Diff struct {
	AllocationID string     `json:"allocation_id"`
	Files        []DiffFile `json:"files"`
	FileCount    int        `json:"file_count"`
	Additions    int64      `json:"additions"`
	Deletions    int64      `json:"deletions"`
	// TooLarge says that the diff is larger than what is shown: Files have no hunks.
	TooLarge bool `json:"too_large,omitempty"`
	// Partial says that some files could not be read and count as unchanged.
	Partial bool `json:"partial,omitempty"`
}

// DiffFile is one changed file. Paths are as git quotes them.
type DiffFile struct {
	Path      string `json:"path"`
	OldPath   string `json:"old_path,omitempty"`
	Status    string `json:"status"`
	OldMode   string `json:"old_mode,omitempty"` // where it changed
	NewMode   string `json:"new_mode,omitempty"`
	Additions int64  `json:"additions"`
	Deletions int64  `json:"deletions"`
	Binary    bool   `json:"binary,omitempty"`
	Hunks     []Hunk `json:"hunks,omitempty"`
	// CutLines are left out after the last hunk.
	CutLines int `json:"cut_lines,omitempty"`
}

// Hunk is a changed part with the lines around it.
type Hunk struct {
	Header string     `json:"header"` // "@@ -1,3 +1,4 @@ func main() {"
	Lines  []DiffLine `json:"lines"`
}

// DiffLine is one line: " ", "+" or "-", and "\" for git's remark on a missing last
// line break. Old and New are its numbers, 0 for none.
type DiffLine struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
	Old  int    `json:"old,omitempty"`
	New  int    `json:"new,omitempty"`
}

const (
	maxDiffFiles   = 1000
	maxLinesOfFile = 2000
	maxLinesOfDiff = 20000
	maxDiffLine    = 4 << 10
)

func (c *call) diff(id string) (Diff, error) {
	v, err := c.present(id)
	if err != nil {
		return Diff{}, err
	}
	rep, err := c.rt().DiffWorkspace(c.ctx, v.ID, runtime.ResultRequest{})
	if err != nil {
		return Diff{}, err
	}
	out := Diff{AllocationID: string(v.ID), Files: []DiffFile{}}
	for _, r := range rep.Repositories {
		out.FileCount += r.FileCount
		out.Additions, out.Deletions, out.Partial = out.Additions+r.Additions, out.Deletions+r.Deletions, out.Partial || r.Partial
		var hunks map[string]parsedFile
		if r.FileCount > 0 {
			var b bytes.Buffer
			_, err := c.rt().ExportWorkspace(c.ctx, v.ID, runtime.ExportRequest{
				Format: runtime.ExportPatch, RepositoryID: r.RepositoryID, MaxBytes: c.s.cfg.Limits.DiffBytes,
			}, &b)
			switch {
			case errors.Is(err, policy.CodeResultTooLarge):
				out.TooLarge = true
			case err != nil:
				return Diff{}, err
			default:
				hunks = parsePatch(b.String())
			}
		}
		for _, f := range r.Files {
			if len(out.Files) == maxDiffFiles {
				break
			}
			d := DiffFile{Path: f.Path, OldPath: f.OldPath, Status: f.Status, Additions: f.Additions, Deletions: f.Deletions, Binary: f.Binary}
			if f.OldMode != f.NewMode {
				d.OldMode, d.NewMode = f.OldMode, f.NewMode
			}
			p := hunks[f.Path]
			d.Hunks, d.CutLines = p.hunks, p.cut
			out.Files = append(out.Files, d)
		}
	}
	return out, nil
}

type parsedFile struct {
	hunks []Hunk
	cut   int
}

// parsePatch reads what git diff --binary printed inside a sandbox: a claim of a
// hostile workspace. What it cannot read it leaves out. Keys are the new paths, of a
// deleted file the old one, as git quotes them.
func parsePatch(text string) map[string]parsedFile {
	p := patchParser{files: make(map[string]parsedFile), left: maxLinesOfDiff}
	for line := range strings.Lines(text) {
		p.line(strings.TrimSuffix(line, "\n"))
	}
	p.endFile()
	return p.files
}

type patchParser struct {
	files          map[string]parsedFile
	path           string
	file           parsedFile
	left           int // lines that may still be kept
	kept           int // lines of this file
	old, new       int // the next lines' numbers
	oldEnd, newEnd int // where the hunk ends
	inHunk         bool
}

func (p *patchParser) endFile() {
	if p.path != "" {
		p.files[p.path] = p.file
	}
	p.path, p.file, p.kept, p.inHunk = "", parsedFile{}, 0, false
}

func (p *patchParser) line(s string) {
	// A hunk's own lines are counted, so that a line of a file that looks like a
	// header is none.
	if p.inHunk && (p.old < p.oldEnd || p.new < p.newEnd || strings.HasPrefix(s, `\`)) {
		p.hunkLine(s)
		return
	}
	switch {
	case strings.HasPrefix(s, "diff --git "):
		p.endFile()
	case strings.HasPrefix(s, "--- "):
		if path := side(s[4:], "a/"); path != "" {
			p.path = path
		}
	case strings.HasPrefix(s, "+++ "):
		if path := side(s[4:], "b/"); path != "" {
			p.path = path
		}
	case strings.HasPrefix(s, "@@ "):
		p.begin(s)
	}
}

// side is the path of a ---/+++ line, "" for /dev/null.
func side(s, prefix string) string {
	s = strings.TrimSuffix(s, "\t") // git's end of a name with blanks
	if quoted, ok := strings.CutPrefix(s, `"`+prefix); ok {
		return `"` + quoted
	}
	path, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return ""
	}
	return path
}

func (p *patchParser) begin(s string) {
	rest, _, ok := strings.Cut(s[3:], " @@")
	from, to, ok2 := strings.Cut(rest, " ")
	oldAt, oldN, ok3 := span(from, "-")
	newAt, newN, ok4 := span(to, "+")
	if p.inHunk = ok && ok2 && ok3 && ok4 && p.path != ""; !p.inHunk {
		return
	}
	p.old, p.oldEnd, p.new, p.newEnd = oldAt, oldAt+oldN, newAt, newAt+newN
	if p.left > 0 && p.kept < maxLinesOfFile {
		p.file.hunks = append(p.file.hunks, Hunk{Header: policy.Printable(limitText(s, 300))})
	}
}

func span(s, sign string) (at, n int, ok bool) {
	s, ok = strings.CutPrefix(s, sign)
	first, count, has := strings.Cut(s, ",")
	at, err := strconv.Atoi(first)
	n = 1
	if has && err == nil {
		n, err = strconv.Atoi(count)
	}
	return at, n, ok && err == nil && at >= 0 && n >= 0 && at < 1<<31 && n < 1<<31
}

func (p *patchParser) hunkLine(s string) {
	l := DiffLine{Kind: " "}
	if s != "" {
		l.Kind, s = s[:1], s[1:]
	}
	switch l.Kind {
	case " ":
		l.Old, l.New = p.old, p.new
		p.old, p.new = p.old+1, p.new+1
	case "-":
		l.Old = p.old
		p.old++
	case "+":
		l.New = p.new
		p.new++
	case `\`:
	default:
		p.inHunk = false // not what git prints
		return
	}
	if p.left <= 0 || p.kept >= maxLinesOfFile || len(p.file.hunks) == 0 {
		p.file.cut++
		return
	}
	p.left, p.kept = p.left-1, p.kept+1
	if len(s) > maxDiffLine {
		s = strings.ToValidUTF8(s[:maxDiffLine], "") + " …"
	}
	l.Text = shown(s)
	h := &p.file.hunks[len(p.file.hunks)-1]
	h.Lines = append(h.Lines, l)
}

// shown is a line of a file for people: what acts on a reader (controls, bidi
// overrides, CVE-2021-42574) is made visible; tabs stay.
func shown(s string) string {
	parts := strings.Split(s, "\t")
	for i, part := range parts {
		parts[i] = policy.Printable(strings.ToValidUTF8(part, "\uFFFD"))
	}
	return strings.Join(parts, "\t")
}
