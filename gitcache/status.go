package gitcache

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const (
	opClean     = "gitcache.clean"
	maxListed   = 20
	maxPathShow = 200
)

// change is one path that `git status` reports.
type change struct {
	kind string // staged, unstaged, untracked or conflicted
	path string
	// doubtful: only the content of a regular file may differ from the index,
	// and our git has no filter to compare it properly.
	doubtful bool
	oid      string // of the index entry
}

// CheckClean refuses a local source whose working tree differs from its HEAD,
// or that is in the middle of an operation. A bare or remote source is clean.
// No git process where nothing was touched, else one, or two where a filter's
// files have to be compared; it may run beside Resolve.
func (c *Cache) CheckClean(ctx context.Context, src Source) error {
	if !src.isLocal() {
		return nil
	}
	r, done, err := c.openSource(ctx, src)
	if err != nil {
		return err
	}
	defer done()
	d, err := discover(src.URL)
	if err != nil {
		return err
	}
	if d.top == "" {
		return nil
	}
	operations := d.operations()
	if len(operations) == 0 && r.provablyClean(ctx, d) {
		return nil
	}
	v, err := r.openView(d)
	if err != nil {
		return unreadable(opClean, err)
	}
	changes, err := c.changes(ctx, v)
	if err != nil {
		return err
	}
	if len(changes) == 0 && len(operations) == 0 {
		return nil
	}
	return dirtyError(changes, operations)
}

// changes lists what a source's working tree and index have beyond HEAD.
func (c *Cache) changes(ctx context.Context, v *view) ([]change, error) {
	out, err := c.run(ctx, v.command("status", "--porcelain=v2", "-z", "--ignore-submodules=all", "--no-renames", "--no-ahead-behind", "--untracked-files=normal"))
	if err != nil {
		return nil, gitFailure(opClean, "the source's status could not be read", err)
	}
	changes, err := parseStatus(string(out))
	if err != nil {
		return nil, gitFailure(opClean, "the source's status could not be read", err)
	}
	if changes, err = c.dropFiltered(ctx, v, changes); err != nil {
		return nil, gitFailure(opClean, "the source's files could not be compared", err)
	}
	return changes, nil
}

// parseStatus reads porcelain version 2 with -z, git-status(1).
func parseStatus(out string) ([]change, error) {
	var changes []change
	for record := range strings.SplitSeq(out, "\x00") {
		if record == "" {
			continue
		}
		if len(record) < 3 {
			return nil, fmt.Errorf("malformed status record %q", record)
		}
		switch record[0] {
		case '?':
			changes = append(changes, change{kind: "untracked", path: record[2:]})
		case '1': // 1 XY sub mH mI mW hH hI path
			f := strings.SplitN(record, " ", 9)
			if len(f) != 9 || len(f[1]) != 2 {
				return nil, fmt.Errorf("malformed status record %q", record)
			}
			if f[1][0] != '.' {
				changes = append(changes, change{kind: "staged", path: f[8]})
			}
			if f[1][1] != '.' {
				doubtful := f[1] == ".M" && f[4] == f[5] && strings.HasPrefix(f[4], "100")
				changes = append(changes, change{kind: "unstaged", path: f[8], doubtful: doubtful, oid: f[7]})
			}
		case 'u': // u XY sub m1 m2 m3 mW h1 h2 h3 path
			f := strings.SplitN(record, " ", 11)
			if len(f) != 11 {
				return nil, fmt.Errorf("malformed status record %q", record)
			}
			changes = append(changes, change{kind: "conflicted", path: f[10]})
		default:
			return nil, fmt.Errorf("unknown status record %q", record)
		}
	}
	return changes, nil
}

// operations names what git would say is in progress, by the files that
// gitrepository-layout(5) and git's wt-status look at.
func (d *sourceDir) operations() []string {
	var out []string
	for _, o := range [][2]string{
		{"MERGE_HEAD", "merge"}, {"CHERRY_PICK_HEAD", "cherry-pick"}, {"REVERT_HEAD", "revert"},
		{"rebase-merge", "rebase"}, {"rebase-apply", "rebase"}, {"BISECT_LOG", "bisect"}, {"sequencer", "sequencer"},
	} {
		if !exists(filepath.Join(d.gitDir, o[0])) {
			continue
		}
		if o[0] == "rebase-apply" && exists(filepath.Join(d.gitDir, "rebase-apply/applying")) {
			o[1] = "am"
		}
		out = append(out, o[1])
	}
	return out
}

func dirtyError(changes []change, operations []string) error {
	count := make(map[string]int)
	for _, c := range changes {
		count[c.kind]++
	}
	var parts []string
	for _, kind := range []string{"conflicted", "staged", "unstaged", "untracked"} {
		if n := count[kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	for _, o := range operations {
		parts = append(parts, "a "+o+" in progress")
	}
	d := policy.Errorf(policy.CodeSourceDirty, opClean, "the source has uncommitted changes: %s", strings.Join(parts, ", "))
	for kind, n := range count {
		d.With(kind, strconv.Itoa(n))
	}
	for _, o := range operations {
		d.Item("operation", o)
	}
	for _, c := range changes {
		d.Item(c.kind, shortPath(c.path))
	}
	return d
}

// joinPaths shows at most maxListed paths, each safe for a terminal.
func joinPaths(paths []string) string {
	var b strings.Builder
	for i, p := range paths {
		if i == maxListed {
			fmt.Fprintf(&b, ", and %d more", len(paths)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(shortPath(p))
	}
	return b.String()
}

func shortPath(p string) string {
	if len(p) > maxPathShow {
		p = p[:maxPathShow] + "…"
	}
	return policy.Printable(p)
}
