package depcache

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

const stagingPrefix = ".tmp-"

// Publish makes an entry, whole or not at all: fill fills a staging directory,
// which is made durable, renamed, and only then marked as complete. False means
// that the entry exists already, or that somebody else is making it.
func (s *Store) Publish(ctx context.Context, k Key, m Marker, fill func(ctx context.Context, staging *os.File) error) (bool, error) {
	const op = "depcache.publish"
	set, err := s.Root.Ensure(k.dir())
	if err != nil {
		return false, diskError(op, err)
	}
	defer set.Close()
	l, err := s.lock(k, unix.LOCK_EX, true)
	if err != nil || l == nil {
		return false, err
	}
	defer unlock(l)
	if _, ok := s.Read(k); ok {
		return false, nil
	}
	if err := cow.RemoveTree(ctx, set, k.Name, cow.RemoveOptions{}); err != nil { // a crash left it
		return false, err
	}
	name := policy.NewID(stagingPrefix)
	id, err := s.Journal.Intend(ctx, k.dir()+"/"+name)
	if err != nil {
		return false, err
	}
	if err = s.stage(ctx, set, name, id, &m, fill); err == nil {
		err = s.complete(set, name, k, m)
	}
	if err != nil {
		after := context.WithoutCancel(ctx)
		if cow.RemoveTree(after, set, name, cow.RemoveOptions{}) == nil && unlink(set, k.Name+".lock") == nil {
			_ = s.Journal.Release(id) // the first error is the one to report
		}
		return false, diskError(op, err)
	}
	return true, s.Journal.Release(id)
}

func (s *Store) stage(ctx context.Context, set *os.File, name, id string, m *Marker, fill func(context.Context, *os.File) error) error {
	dir, err := s.Root.MkdirAt(set, name, 0o755)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.Journal.Made(id, dir); err != nil {
		return err
	}
	if err := fill(ctx, dir); err != nil {
		return err
	}
	meter := cow.NewMeter()
	if err := meter.Add(ctx, set, name); err != nil {
		return err
	}
	u := meter.Usage()
	m.Bytes, m.Inodes, m.PublishedAt = u.Referenced, u.Inodes, time.Now().UTC()
	return unix.Syncfs(int(dir.Fd()))
}

func (s *Store) complete(set *os.File, name string, k Key, m Marker) error {
	fd := int(set.Fd())
	if err := unix.Renameat2(fd, name, fd, k.Name, unix.RENAME_NOREPLACE); err != nil {
		return err
	}
	if err := set.Sync(); err != nil {
		return err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.Root.WriteFile(k.marker(), append(b, '\n'), 0o600)
}

// FillDependencies copies source, which becomes the directory at of the entry.
// Blocks are shared where the file system can.
func (s *Store) FillDependencies(ctx context.Context, staging *os.File, at string, source *os.File) error {
	parent, err := s.makeParents(staging, path.Dir(at))
	if err != nil {
		return err
	}
	defer parent.Close()
	_, err = cow.ByName(policy.StrategyReflink).Materialize(ctx, cow.Request{Source: source, TargetParent: parent, TargetName: path.Base(at)})
	return err
}

func (s *Store) makeParents(dir *os.File, rel string) (*os.File, error) {
	cur, err := rootdir.OpenAt(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil || rel == "." {
		return cur, err
	}
	for _, name := range strings.Split(rel, "/") {
		next, err := rootdir.OpenAt(cur, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			next, err = s.Root.MkdirAt(cur, name, 0o755)
		}
		cur.Close()
		if err != nil {
			return nil, err
		}
		cur = next
	}
	return cur, nil
}

// CopyInto clones the directory at of an entry into a tree, with the parents that
// it lacks. Where the tree has something of that name, or reaches it by a link,
// nothing is done: what is tracked goes before what is cached.
func (s *Store) CopyInto(ctx context.Context, k Key, at string, tree *os.File) error {
	const op = "depcache.copy"
	source, err := s.Root.OpenDir(k.Path() + "/" + at)
	if err != nil {
		return diskError(op, err)
	}
	defer source.Close()
	parent, err := s.makeParents(tree, path.Dir(at))
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return diskError(op, err)
	}
	defer parent.Close()
	var st unix.Stat_t
	switch err := unix.Fstatat(int(parent.Fd()), path.Base(at), &st, unix.AT_SYMLINK_NOFOLLOW); err {
	case nil:
		return nil
	case unix.ENOENT:
	default:
		return diskError(op, err)
	}
	_, err = cow.ByName(policy.StrategyReflink).Materialize(ctx, cow.Request{Source: source, TargetParent: parent, TargetName: path.Base(at)})
	return err
}

// FillBuild makes the next generation of a build cache: what a workspace wrote
// (upper, an overlay's upper layer), and of the generation before it (base, nil
// for none) what upper neither replaces nor hides.
func (s *Store) FillBuild(ctx context.Context, staging, upper, base *os.File) error {
	_, err := cow.ByName(policy.StrategyReflink).Materialize(ctx, cow.Request{Source: upper, TargetParent: staging, TargetName: contentName})
	if err != nil || base == nil {
		return err
	}
	target, err := rootdir.OpenAt(staging, contentName, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer target.Close()
	return cow.LinkMissing(ctx, target, base, upper)
}

// contentName is where the content of a build cache's generation lies in its entry.
const contentName = "cache"

// BuildPath is the directory to mount of a build cache's generation, relative to
// the Runtime root.
func (k Key) BuildPath() string { return k.Path() + "/" + contentName }
