package cow

import (
	"fmt"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// Entry is one strategy in a Table.
type Entry struct {
	Name    policy.StrategyName `json:"name"`
	Support Support             `json:"support"`
}

// Table is what a probe found out about one file system.
type Table struct {
	FileSystem string    `json:"file_system"`
	ProbedAt   time.Time `json:"probed_at"`
	Entries    []Entry   `json:"entries"`
}

// autoOrder is the order in which auto prefers strategies:
//
// btrfs_snapshot first: constant time, and the result is an ordinary tree in
// which rename, hard links and inode numbers behave as everywhere. It counts as
// costly where a snapshot cannot be deleted as a snapshot (btrfs mounted without
// user_subvol_rm_allowed, no CAP_SYS_ADMIN): removal is then a walk over every
// file, and overlay is the better choice.
//
// overlay next: constant time on every file system. Its price is paid by the
// few who notice it: rename(2) of a directory of the lower layer is EXDEV (mv
// copies instead), a first write copies the whole file up, which breaks its
// hard links.
//
// reflink: an ordinary tree, time by the number of files, no disk.
//
// copy last: it works everywhere and costs time and disk.
//
// git_worktree is not here although it works wherever copy does: it costs the
// same disk and more time (checkout inflates what copy only moves), and leaves
// an administrative entry in the shared cache to clean up. direct_legacy_mount
// is no copy at all and has to be asked for.
var autoOrder = []policy.StrategyName{
	policy.StrategyBtrfsSnapshot,
	policy.StrategyOverlay,
	policy.StrategyReflink,
	policy.StrategyCopy,
}

// Lookup returns the entry of a strategy.
func (t *Table) Lookup(name policy.StrategyName) (Entry, bool) {
	for _, e := range t.Entries {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}

// Choose returns the strategy of that name, or for auto the best one that
// works, and a sentence for people that says why.
func (t *Table) Choose(name policy.StrategyName) (s Strategy, reason string, err error) {
	const op = "cow.choose"
	if name == "" || name == policy.StrategyAuto {
		return t.chooseAuto()
	}
	s = ByName(name)
	e, ok := t.Lookup(name)
	if s == nil || !ok {
		return nil, "", policy.Errorf(policy.CodeStrategyUnknown, op, "%q is no materialization strategy", policy.Printable(string(name)))
	}
	if !e.Support.OK {
		d := policy.Errorf(policy.CodeStrategyUnsupported, op, "%s is not possible on this %s: %s", name, t.FileSystem, e.Support.Reason).
			With("strategy", string(name)).With("file_system", t.FileSystem)
		if e.Support.Fix != "" {
			d.WithHint("%s", e.Support.Fix)
		}
		return nil, "", d
	}
	return s, fmt.Sprintf("%s was asked for: %s", name, e.Support.Reason), nil
}

func (t *Table) chooseAuto() (Strategy, string, error) {
	var passed []string
	for _, costly := range []bool{false, true} {
		for _, name := range autoOrder {
			e, ok := t.Lookup(name)
			switch {
			case !ok:
			case e.Support.OK && e.Support.Costly == costly:
				why := fmt.Sprintf("auto chose %s on %s: %s", name, t.FileSystem, e.Support.Reason)
				if len(passed) > 0 {
					why += "; passed over " + strings.Join(passed, ", ")
				}
				return ByName(name), why, nil
			case !costly:
				passed = append(passed, fmt.Sprintf("%s (%s)", name, e.Support.Reason))
			}
		}
	}
	return nil, "", policy.Errorf(policy.CodeStrategyUnsupported, "cow.choose",
		"no materialization strategy works on this %s: %s", t.FileSystem, strings.Join(passed, ", ")).
		With("file_system", t.FileSystem)
}
