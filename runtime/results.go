package runtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// What a Worker left is read by git in a sandbox (look.sh), never by git on the
// host. Every report below is a claim of the workspace about itself: its shape
// is checked, its truth is not.

// ResultRequest asks about a workspace; RepositoryID "" is all its repositories.
type ResultRequest struct {
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
}

// DiffReport compares the files of a workspace that are not ignored, whether
// committed, staged or neither, with the points that it was made of.
type DiffReport struct {
	Repositories []RepositoryDiff `json:"repositories"`
}

// RepositoryDiff is one repository's part. Files are at most 10,000; the sums
// are over all.
type RepositoryDiff struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	CommitID     string              `json:"commit_id"` // the point's
	Tree         string              `json:"tree"`      // of the files as they are
	Files        []DiffFile          `json:"files"`
	FileCount    int                 `json:"file_count"`
	Additions    int64               `json:"additions"`
	Deletions    int64               `json:"deletions"`
	// Partial says that some files could not be read and count as unchanged.
	Partial bool `json:"partial,omitempty"`
}

// DiffFile is one changed file. A path that is not plain UTF-8 text is quoted as
// git quotes it. Additions and Deletions count lines; binary files have none.
type DiffFile struct {
	Path    string `json:"path"`
	OldPath string `json:"old_path,omitempty"` // of a renamed one
	// Status is added, deleted, modified, renamed or type_changed.
	Status    string `json:"status"`
	OldMode   string `json:"old_mode"` // git's, "000000" for none
	NewMode   string `json:"new_mode"`
	Additions int64  `json:"additions"`
	Deletions int64  `json:"deletions"`
	Binary    bool   `json:"binary,omitempty"`
}

// StatusReport is what git status says in a workspace.
type StatusReport struct {
	Repositories []RepositoryStatus `json:"repositories"`
}

// RepositoryStatus is one repository's part. Entries are at most 10,000.
type RepositoryStatus struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	Head         string              `json:"head,omitempty"`
	Branch       string              `json:"branch,omitempty"` // "" for a detached HEAD
	// CommitCount counts the commits that nobody has collected.
	CommitCount int           `json:"commit_count"`
	Staged      int           `json:"staged"`
	Unstaged    int           `json:"unstaged"`
	Untracked   int           `json:"untracked"`
	Conflicted  int           `json:"conflicted"`
	Entries     []StatusEntry `json:"entries"`
}

// StatusEntry is one path with git's two letters: of the index against HEAD and
// of the file against the index; "." for unchanged, "?" for untracked.
type StatusEntry struct {
	Path     string `json:"path"`
	Index    string `json:"index"`
	Worktree string `json:"worktree"`
}

// CommitsRequest asks for the newest commits. Limit 0 is 100; at most 1000.
type CommitsRequest struct {
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	Limit        int                 `json:"limit,omitempty"`
}

// CommitsReport lists the commits that a workspace has made and nobody collected.
type CommitsReport struct {
	Repositories []RepositoryCommits `json:"repositories"`
}

// RepositoryCommits is one repository's part, newest first.
type RepositoryCommits struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	CommitCount  int                 `json:"commit_count"`
	Commits      []WorkspaceCommit   `json:"commits"`
}

// WorkspaceCommit is one commit. Names and Subject are untrusted text.
type WorkspaceCommit struct {
	ID             string    `json:"id"`
	Parents        []string  `json:"parents"`
	Tree           string    `json:"tree"`
	AuthorName     string    `json:"author_name"`
	AuthorEmail    string    `json:"author_email"`
	AuthoredAt     time.Time `json:"authored_at"`
	CommitterName  string    `json:"committer_name"`
	CommitterEmail string    `json:"committer_email"`
	CommittedAt    time.Time `json:"committed_at"`
	Subject        string    `json:"subject"`
}

// ExportFormat names a way to take a workspace's results out.
type ExportFormat string

const (
	ExportPatch  ExportFormat = "patch"  // git diff --binary from the point to the files as they are
	ExportBundle ExportFormat = "bundle" // git bundle of the commits since the point
	ExportTar    ExportFormat = "tar"    // the files that are not ignored
)

// ExportRequest asks for one repository's results; RepositoryID may be left out
// where there is one. MaxBytes 0 is 1 GiB.
type ExportRequest struct {
	Format       ExportFormat        `json:"format"`
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	MaxBytes     int64               `json:"max_bytes,omitempty"`
}

const (
	defaultExport = 1 << 30
	mostExport    = 1 << 40
	// maxReport bounds what is read for a report, maxEntries what it holds.
	maxReport  = 64 << 20
	maxEntries = 10000
)

// looked returns an allocation that can be looked at, and which of its
// repositories a request means.
func (r *Runtime) looked(ctx context.Context, id policy.AllocationID, repo policy.RepositoryID) (registry.Allocation, []int, error) {
	const op = "runtime.results"
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return registry.Allocation{}, nil, err
	}
	a, err := r.registry.GetAllocation(ctx, id)
	if err != nil {
		return a, nil, err
	}
	switch {
	case a.Status == registry.AllocationRemoved, a.Status == registry.AllocationCleanupPending:
		return a, nil, policy.Errorf(policy.CodeAllocationNotActive, op, "the execution workspace %s is %s", id, a.Status)
	case a.MaterializerKind == policy.StrategyDirect:
		return a, nil, policy.Errorf(policy.CodeStrategyUnsupported, op, "%s has no files of its own: its work is in the source directory", id).
			WithHint("Use git there.")
	}
	var mounts []int
	for i, m := range a.Mounts {
		if repo == "" || m.RepositoryID == repo {
			mounts = append(mounts, i)
		}
	}
	if len(mounts) == 0 {
		return a, nil, policy.Errorf(policy.CodeRepositoryUnknown, op, "the workspace has no repository %q", policy.Printable(string(repo)))
	}
	return a, mounts, nil
}

// lookedAtOne is looked for what is about one repository.
func (r *Runtime) lookedAtOne(ctx context.Context, id policy.AllocationID, repo policy.RepositoryID) (registry.Allocation, int, error) {
	a, mounts, err := r.looked(ctx, id, repo)
	if err != nil {
		return a, 0, err
	}
	if len(mounts) > 1 {
		return a, 0, policy.Errorf(policy.CodeBadRequest, "runtime.results", "%s has %d repositories", id, len(mounts)).
			WithHint("Name one of them.")
	}
	return a, mounts[0], nil
}

// report asks one question about each repository and parses each answer.
func report[T any](ctx context.Context, r *Runtime, id policy.AllocationID, repo policy.RepositoryID, l look, parse func(*fields, registry.Allocation, int) T) ([]T, error) {
	a, mounts, err := r.looked(ctx, id, repo)
	if err != nil {
		return nil, err
	}
	out := make([]T, 0, len(mounts))
	for _, i := range mounts {
		var b bytes.Buffer
		l.mount, l.limit = i, maxReport
		if err := r.look(ctx, a, l, &b); err != nil {
			return nil, err
		}
		f := &fields{rest: b.String()}
		v := parse(f, a, i)
		if f.bad {
			return nil, policy.Errorf(policy.CodeWorkspaceUnreadable, "runtime.results", "git's answer about %s makes no sense", id)
		}
		out = append(out, v)
	}
	return out, nil
}

// DiffWorkspace says which files of a workspace differ from its points.
func (r *Runtime) DiffWorkspace(ctx context.Context, id policy.AllocationID, req ResultRequest) (DiffReport, error) {
	list, err := report(ctx, r, id, req.RepositoryID, look{ask: "diff"}, func(f *fields, a registry.Allocation, i int) RepositoryDiff {
		d := f.diff()
		d.RepositoryID, d.CommitID = a.Mounts[i].RepositoryID, a.RepositoryPoints[i].CommitID
		return d
	})
	return DiffReport{list}, err
}

// StatusWorkspace says what git status says in a workspace.
func (r *Runtime) StatusWorkspace(ctx context.Context, id policy.AllocationID, req ResultRequest) (StatusReport, error) {
	list, err := report(ctx, r, id, req.RepositoryID, look{ask: "status"}, func(f *fields, a registry.Allocation, i int) RepositoryStatus {
		s := f.status()
		s.RepositoryID = a.Mounts[i].RepositoryID
		return s
	})
	return StatusReport{list}, err
}

// WorkspaceCommits lists what was committed in a workspace and not collected.
func (r *Runtime) WorkspaceCommits(ctx context.Context, id policy.AllocationID, req CommitsRequest) (CommitsReport, error) {
	switch {
	case req.Limit == 0:
		req.Limit = 100
	case req.Limit < 0 || req.Limit > 1000:
		return CommitsReport{}, policy.Errorf(policy.CodeBadRequest, "runtime.commits", "the limit is not between 1 and 1000")
	}
	list, err := report(ctx, r, id, req.RepositoryID, look{ask: "commits", args: []string{strconv.Itoa(req.Limit)}}, func(f *fields, a registry.Allocation, i int) RepositoryCommits {
		c := f.commits(req.Limit)
		c.RepositoryID = a.Mounts[i].RepositoryID
		return c
	})
	return CommitsReport{list}, err
}

// ExportWorkspace writes a repository's results to w, and returns their size.
// What w got before an error is not whole.
func (r *Runtime) ExportWorkspace(ctx context.Context, id policy.AllocationID, req ExportRequest, w io.Writer) (int64, error) {
	const op = "runtime.export"
	switch req.Format {
	case ExportPatch, ExportBundle, ExportTar:
	default:
		return 0, policy.Errorf(policy.CodeBadRequest, op, "%q is no export format", policy.Printable(string(req.Format))).WithHint("Use patch, bundle or tar.")
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = defaultExport
	}
	if req.MaxBytes < 0 || req.MaxBytes > mostExport {
		return 0, policy.Errorf(policy.CodeBadRequest, op, "the limit is not between 1 byte and 1 TiB")
	}
	a, i, err := r.lookedAtOne(ctx, id, req.RepositoryID)
	if err != nil {
		return 0, err
	}
	out := &counting{w: w}
	err = r.look(ctx, a, look{ask: string(req.Format), mount: i, limit: req.MaxBytes, within: exportLimit}, out)
	return out.n, err
}

type counting struct {
	w io.Writer
	n int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// fields reads a look's answer, NUL-terminated strings of a possibly hostile
// workspace. The first thing that makes no sense sets bad; the rest reads as "".
type fields struct {
	rest string
	bad  bool
}

func (f *fields) more() bool { return !f.bad && f.rest != "" }

func (f *fields) next() string {
	s, rest, ok := strings.Cut(f.rest, "\x00")
	if !ok {
		f.bad = true
		return ""
	}
	f.rest = rest
	return s
}

// oid is an object id, or with empty allowed nothing.
func (f *fields) oid(empty bool) string {
	s := f.next()
	if !policy.ValidOID(s) && (s != "" || !empty) {
		f.bad = true
	}
	return s
}

func (f *fields) number() int {
	n, ok := count(f.next())
	f.bad = f.bad || !ok
	return n
}

func (f *fields) time() time.Time {
	n, err := strconv.ParseInt(f.next(), 10, 64)
	if err != nil || n < -1<<40 || n > 1<<40 {
		n = 0 // git prints what a commit says
	}
	return time.Unix(n, 0).UTC()
}

// text is a line for people.
func (f *fields) text() string {
	s := f.next()
	if len(s) > 1000 {
		s = s[:1000]
	}
	return policy.Printable(strings.ToValidUTF8(s, "\uFFFD"))
}

// pathName is a path as DiffFile has it.
func pathName(s string) string {
	plain := utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return c == '"' || c == '\\' || !unicode.IsPrint(c) })
	if plain {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

var diffStatus = map[byte]string{'A': "added", 'D': "deleted", 'M': "modified", 'R': "renamed", 'T': "type_changed"}

// diff reads diff-tree --raw --numstat -z: all raw entries, then their numbers in
// the same order.
func (f *fields) diff() RepositoryDiff {
	d := RepositoryDiff{Tree: f.oid(false), Files: []DiffFile{}}
	d.Partial = f.next() != ""
	for f.more() && f.rest[0] == ':' {
		file := f.rawEntry()
		if d.FileCount++; len(d.Files) < maxEntries {
			d.Files = append(d.Files, file)
		}
	}
	for i := 0; f.more(); i++ {
		add, del, binary := f.numbers()
		d.Additions += add
		d.Deletions += del
		if i < len(d.Files) {
			d.Files[i].Additions, d.Files[i].Deletions, d.Files[i].Binary = add, del, binary
		}
		f.bad = f.bad || i >= d.FileCount
	}
	return d
}

// rawEntry is ":oldmode newmode oldoid newoid X[score]", the path, and the new
// path of a rename.
func (f *fields) rawEntry() (file DiffFile) {
	w := strings.Split(f.next()[1:], " ")
	if len(w) != 5 || !isMode(w[0]) || !isMode(w[1]) || w[4] == "" || diffStatus[w[4][0]] == "" {
		f.bad = true
		return file
	}
	file = DiffFile{Status: diffStatus[w[4][0]], OldMode: w[0], NewMode: w[1], Path: pathName(f.next())}
	if file.Status == "renamed" {
		file.OldPath, file.Path = file.Path, pathName(f.next())
	}
	return file
}

func isMode(s string) bool {
	_, err := strconv.ParseUint(s, 8, 32)
	return err == nil && len(s) == 6
}

// numbers is "added<TAB>deleted<TAB>path"; for a rename the path is empty and
// both names follow.
func (f *fields) numbers() (add, del int64, binary bool) {
	w := strings.SplitN(f.next(), "\t", 3)
	if len(w) != 3 {
		f.bad = true
		return 0, 0, false
	}
	if w[2] == "" {
		f.next()
		f.next()
	}
	if w[0] == "-" && w[1] == "-" {
		return 0, 0, true
	}
	add, aerr := strconv.ParseInt(w[0], 10, 48)
	del, derr := strconv.ParseInt(w[1], 10, 48)
	f.bad = f.bad || aerr != nil || derr != nil || add < 0 || del < 0
	return add, del, false
}

// status reads head, branch and count, then git status --porcelain=v2 -z.
func (f *fields) status() RepositoryStatus {
	s := RepositoryStatus{Head: f.oid(true), Branch: f.text(), CommitCount: f.number(), Entries: []StatusEntry{}}
	for f.more() {
		line := f.next()
		kind, rest, _ := strings.Cut(line, " ")
		// The path is behind a number of words that depends on the kind: git-status(1).
		words, e := map[string]int{"1": 7, "u": 9, "?": 0}[kind], StatusEntry{}
		w := strings.SplitN(rest, " ", words+1)
		if len(w) != words+1 || w[words] == "" || (words > 0 && len(w[0]) != 2) {
			f.bad = true
			break
		}
		switch kind {
		case "1":
			e.Index, e.Worktree = policy.Printable(w[0][:1]), policy.Printable(w[0][1:])
			if e.Index != "." {
				s.Staged++
			}
			if e.Worktree != "." {
				s.Unstaged++
			}
		case "u":
			e.Index, e.Worktree = policy.Printable(w[0][:1]), policy.Printable(w[0][1:])
			s.Conflicted++
		case "?":
			e.Index, e.Worktree = "?", "?"
			s.Untracked++
		default:
			f.bad = true
		}
		e.Path = pathName(w[words])
		if len(s.Entries) < maxEntries {
			s.Entries = append(s.Entries, e)
		}
	}
	return s
}

// commits reads a count, then ten fields for each commit.
func (f *fields) commits(limit int) RepositoryCommits {
	c := RepositoryCommits{CommitCount: f.number(), Commits: []WorkspaceCommit{}}
	for f.more() {
		v := WorkspaceCommit{ID: f.oid(false), Parents: strings.Fields(f.next()), Tree: f.oid(false)}
		for _, p := range v.Parents {
			f.bad = f.bad || !policy.ValidOID(p)
		}
		v.AuthorName, v.AuthorEmail, v.AuthoredAt = f.text(), f.text(), f.time()
		v.CommitterName, v.CommitterEmail, v.CommittedAt = f.text(), f.text(), f.time()
		v.Subject = f.text()
		c.Commits = append(c.Commits, v)
		f.bad = f.bad || len(c.Commits) > limit
	}
	return c
}
