package depcache

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// Journal is the cleanup ledger: Intend before a staging directory is made, Made
// when it exists, Release when that name is gone. Paths are relative to the
// Runtime root.
type Journal interface {
	Intend(ctx context.Context, path string) (id string, err error)
	Made(id string, dir *os.File) error
	Release(id string) error
}

// Store is the build-cache directory of a Runtime root.
type Store struct {
	Root    *rootdir.Root
	Journal Journal
}

// Marker says that an entry is complete.
type Marker struct {
	Bytes       int64               `json:"bytes"`
	Inodes      int64               `json:"inodes"`
	Directory   string              `json:"directory,omitempty"` // of a dependency cache
	PublishedAt time.Time           `json:"published_at"`
	Allocation  policy.AllocationID `json:"allocation"`
}

const maxMarker = 64 << 10

// Read returns an entry's marker, false if there is no such entry.
func (s *Store) Read(k Key) (Marker, bool) {
	var m Marker
	b, err := s.Root.ReadFile(k.marker(), maxMarker)
	if err != nil || json.Unmarshal(b, &m) != nil {
		return Marker{}, false
	}
	if ok, err := s.Root.Exists(k.Path()); err != nil || !ok {
		return Marker{}, false
	}
	return m, true
}

// Hold keeps an entry from eviction until the returned function is called: long
// enough to write down who uses it. False means that there is no such entry.
func (s *Store) Hold(k Key) (release func(), ok bool, err error) {
	if _, ok := s.Read(k); !ok {
		return nil, false, nil
	}
	l, err := s.lock(k, unix.LOCK_SH, false)
	if err != nil || l == nil {
		return nil, false, err
	}
	if _, ok := s.Read(k); !ok { // evicted meanwhile
		unlock(l)
		return nil, false, nil
	}
	now := time.Now()
	tv := unix.NsecToTimeval(now.UnixNano())
	_ = unix.Futimes(int(l.Fd()), []unix.Timeval{tv, tv}) // for eviction: when it was last wanted
	return func() { unlock(l) }, true, nil
}

// lock opens and locks an entry's lock file; nil if somebody else has it and the
// caller does not want to wait. An evicted entry's lock is unlinked, so a lock
// counts only while the name leads to it.
func (s *Store) lock(k Key, how int, create bool) (*os.File, error) {
	const op = "depcache.lock"
	flags, mode := unix.O_RDWR, uint32(0)
	if create {
		flags, mode = unix.O_RDWR|unix.O_CREAT, 0o600
	}
	for {
		f, err := s.Root.OpenFile(k.lock(), flags, mode)
		if errors.Is(err, fs.ErrNotExist) && !create {
			return nil, nil
		}
		if err != nil {
			return nil, diskError(op, err)
		}
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, nil
			}
			return nil, diskError(op, err)
		}
		if s.current(f, k.lock()) {
			return f, nil
		}
		f.Close()
	}
}

// unlock gives a lock back at once: closing is not enough, since a process that
// is just being cloned has a copy of the descriptor for a moment.
func unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	f.Close()
}

func (s *Store) current(f *os.File, rel string) bool {
	g, err := s.Root.OpenFile(rel, unix.O_PATH, 0)
	if err != nil {
		return false
	}
	defer g.Close()
	a, err1 := f.Stat()
	b, err2 := g.Stat()
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// Newest is a set's newest complete entry.
func (s *Store) Newest(set string) (k Key, ok bool, err error) {
	entries, err := s.set(set)
	if err != nil || len(entries) == 0 {
		return Key{}, false, err
	}
	e := slices.MaxFunc(entries, func(a, b Entry) int { return a.PublishedAt.Compare(b.PublishedAt) })
	return e.Key, true, nil
}

// Entry is a complete entry.
type Entry struct {
	Key
	Marker
	Used time.Time
}

func (s *Store) set(set string) ([]Entry, error) {
	names, err := s.names(rootdir.BuildCache + "/" + set)
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, n := range names {
		name, found := strings.CutSuffix(n, ".json")
		k := Key{Set: set, Name: name}
		if !found || !k.Valid() {
			continue
		}
		m, ok := s.Read(k)
		if !ok {
			continue
		}
		e := Entry{Key: k, Marker: m, Used: m.PublishedAt}
		if f, err := s.Root.OpenFile(k.lock(), unix.O_PATH, 0); err == nil {
			if st, err := f.Stat(); err == nil && st.ModTime().After(e.Used) {
				e.Used = st.ModTime()
			}
			f.Close()
		}
		out = append(out, e)
	}
	return out, nil
}

func (s *Store) names(rel string) ([]string, error) {
	d, err := s.Root.OpenDir(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, diskError("depcache.list", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// sets lists every set there is.
func (s *Store) sets() ([]string, error) {
	var out []string
	for _, kind := range []string{"deps", "work"} {
		names, err := s.names(rootdir.BuildCache + "/" + kind)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if policy.ValidID(n) {
				out = append(out, kind+"/"+n)
			}
		}
	}
	return out, nil
}

// Entries lists every complete entry, the least recently used first.
func (s *Store) Entries() ([]Entry, error) {
	sets, err := s.sets()
	if err != nil {
		return nil, err
	}
	var all []Entry
	for _, set := range sets {
		es, err := s.set(set)
		if err != nil {
			return nil, err
		}
		all = append(all, es...)
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.Path(), b.Path())) })
	return all, nil
}

// Eviction says what Evict removed, or with dry would.
type Eviction struct {
	Removed []Entry
	// InUse counts entries that were passed over since a workspace uses them.
	InUse int
}

// Evict removes entries that inUse does not know, the least recently used first:
// all superseded generations of build caches, then others until at most keep
// bytes are left. It also clears what a crash left without a marker.
func (s *Store) Evict(ctx context.Context, keep int64, dry bool, inUse func(Key) (bool, error)) (Eviction, error) {
	var ev Eviction
	if !dry {
		if err := s.Sweep(ctx); err != nil {
			return ev, err
		}
	}
	all, err := s.Entries()
	if err != nil {
		return ev, err
	}
	var left int64
	newest := make(map[string]Entry)
	for _, e := range all {
		left += e.Bytes
		if n, ok := newest[e.Set]; !ok || e.PublishedAt.After(n.PublishedAt) {
			newest[e.Set] = e
		}
	}
	for _, old := range []bool{true, false} {
		for _, e := range all {
			superseded := strings.HasPrefix(e.Set, "work/") && newest[e.Set].Name != e.Name
			if superseded != old || (!old && left <= keep) {
				continue
			}
			gone, err := s.evict(ctx, e.Key, dry, inUse)
			if err != nil {
				return ev, err
			}
			if !gone {
				ev.InUse++
				continue
			}
			ev.Removed = append(ev.Removed, e)
			left -= e.Bytes
		}
	}
	return ev, nil
}

// evict removes one entry unless somebody uses it.
func (s *Store) evict(ctx context.Context, k Key, dry bool, inUse func(Key) (bool, error)) (bool, error) {
	l, err := s.lock(k, unix.LOCK_EX, false)
	if err != nil || l == nil {
		return false, err
	}
	defer unlock(l)
	// Under the lock: a workspace that was just being made has written itself down.
	used, err := inUse(k)
	if err != nil || used || dry {
		return !used && err == nil, err
	}
	return true, s.remove(ctx, k)
}

// remove takes the marker first, so that an entry that is half gone is nobody's,
// and the lock last. The caller holds the lock.
func (s *Store) remove(ctx context.Context, k Key) error {
	const op = "depcache.evict"
	dir, err := s.Root.OpenDir(k.dir())
	if err != nil {
		return diskError(op, err)
	}
	defer dir.Close()
	if err := unlink(dir, k.Name+".json"); err != nil {
		return diskError(op, err)
	}
	if err := dir.Sync(); err != nil {
		return diskError(op, err)
	}
	if err := cow.RemoveTree(ctx, dir, k.Name, cow.RemoveOptions{}); err != nil {
		return err
	}
	return diskError(op, unlink(dir, k.Name+".lock"))
}

func unlink(dir *os.File, name string) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && err != unix.ENOENT {
		return &fs.PathError{Op: "unlinkat", Path: name, Err: err}
	}
	return nil
}

// Sweep removes entries without a marker: a crash came right before it was
// written, or in the middle of an eviction.
func (s *Store) Sweep(ctx context.Context) error {
	sets, err := s.sets()
	if err != nil {
		return err
	}
	for _, set := range sets {
		names, err := s.names(rootdir.BuildCache + "/" + set)
		if err != nil {
			return err
		}
		for _, n := range names {
			k := Key{Set: set, Name: strings.TrimSuffix(n, ".lock")}
			if !k.Valid() {
				continue
			}
			if err := s.sweepOne(ctx, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) sweepOne(ctx context.Context, k Key) error {
	if _, ok := s.Read(k); ok {
		return nil
	}
	l, err := s.lock(k, unix.LOCK_EX, true)
	if err != nil || l == nil {
		return err // being published
	}
	defer unlock(l)
	if _, ok := s.Read(k); ok {
		return nil
	}
	return s.remove(ctx, k)
}

// Drop removes a whole set that nobody can use any more, such as a removed
// repository's.
func (s *Store) Drop(ctx context.Context, set string) error {
	dir, err := s.Root.OpenDir(rootdir.BuildCache + "/" + path.Dir(set))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskError("depcache.drop", err)
	}
	defer dir.Close()
	return cow.RemoveTree(ctx, dir, path.Base(set), cow.RemoveOptions{})
}

// diskError turns the errors of making things into diagnostics.
func diskError(op string, err error) error {
	return rootdir.Failed(op, "the build cache cannot be changed", err)
}
