package helper

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// Remove takes an allocation away: its workspace and its Workers' directories.
// A live Worker on it is refused. It is idempotent, and an interrupted removal
// goes on at the next call or recovery.
func (l *Local) Remove(ctx context.Context, req RemoveRequest) error {
	id := req.AllocationID
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return err
	}
	if err := l.awaitTeardown(ctx, id); err != nil {
		return err
	}
	rs, err := l.resourcesOf(ctx, id)
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.Kind != ledger.KindProcess {
			continue
		}
		live, err := l.lockHeld(policy.WorkerID(r.Attrs["worker"]))
		if err != nil {
			return err
		}
		if live {
			return policy.Errorf(policy.CodeAllocationInUse, "helper.remove", "a live worker stands on %s", id).With("worker", r.Attrs["worker"])
		}
	}
	// From here on recovery finishes what we begin.
	l.mu.Lock()
	neverKept := l.own[id] && !l.kept[id]
	l.mu.Unlock()
	if !neverKept {
		if err := l.ledger.Unkeep(ctx, string(id)); err != nil {
			return err
		}
	}
	l.clearSlice(ctx, id)
	if req.Background {
		return l.removeBehind(ctx, id, rs)
	}
	return l.removeNow(ctx, id, rs)
}

// removeNow deletes each directory where it stands.
func (l *Local) removeNow(ctx context.Context, id policy.AllocationID, rs []ledger.Resource) error {
	began := time.Now()
	for _, r := range rs {
		if err := l.removeResource(ctx, r); err != nil {
			return err
		}
	}
	l.removed(id, time.Since(began))
	if err := l.syncParents(rs); err != nil {
		return err
	}
	return l.release(id, rs...)
}

// syncParents makes the removal of directories durable: without that a power
// failure could bring one back after its release is on disk, and then nobody
// would know it any more (fsync(2): the directory entry needs its own).
func (l *Local) syncParents(rs []ledger.Resource) error {
	synced := make(map[string]bool, 2)
	for _, r := range rs {
		if r.Kind != ledger.KindDirectory {
			continue // a subvolume lies in a directory of the same allocation
		}
		dir, _ := splitPath(r.Path)
		if synced[dir] {
			continue
		}
		synced[dir] = true
		f, err := l.root.OpenDir(dir)
		if err != nil {
			return diskError("helper.remove", err)
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return diskError("helper.remove", err)
		}
	}
	return nil
}

// removeBehind renames each directory into the trash, which is all that the
// caller waits for, and reclaims the space in the background.
func (l *Local) removeBehind(ctx context.Context, id policy.AllocationID, rs []ledger.Resource) error {
	var trash, dirs []ledger.Resource
	for _, r := range rs {
		switch r.Kind {
		case ledger.KindDirectory:
			dirs = append(dirs, r)
			trash = append(trash, newResource(ledger.KindDirectory, id, rootdir.Trash+"/"+policy.NewID("t-")))
		case ledger.KindCgroup:
			if err := l.endGroup(r); err != nil {
				return err
			}
		case ledger.KindProcess:
			if err := l.endProcess(ctx, r); err != nil { // a proxy: its Worker has ended
				return err
			}
		}
	}
	if err := l.intend(ctx, id, trash...); err != nil {
		return err
	}
	for i, r := range dirs {
		err := l.checkIdentity(r)
		if err == nil {
			err = l.rename(r.Path, trash[i].Path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return diskError("helper.remove", err)
		}
	}
	if err := l.syncParents(dirs); err != nil {
		return err
	}
	if err := l.release(id, rs...); err != nil {
		return err
	}
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.reclaim.Add(1)
	}
	l.mu.Unlock()
	if closed {
		return nil // the ledger holds the trash for the next process
	}
	go func() {
		defer l.reclaim.Done()
		after := context.WithoutCancel(ctx)
		err := l.removeNow(after, id, trash)
		if err == nil {
			err = l.ledger.Sync(after)
		}
		if err != nil {
			l.log.Warn("space not reclaimed yet", "allocation", id, "error", err)
		}
	}()
	return nil
}

// rename renames below the Runtime root. Its owner could put a link in the place of a
// directory, and renameat2(2) would follow it: it has no flag against that.
func (l *Local) rename(from, to string) error {
	fromDir, fromName := splitPath(from)
	toDir, toName := splitPath(to)
	source, err := l.root.OpenDir(fromDir)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := l.root.Ensure(toDir)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := unix.Renameat2(int(source.Fd()), fromName, int(target.Fd()), toName, unix.RENAME_NOREPLACE); err != nil {
		return &fs.PathError{Op: "renameat2", Path: from, Err: err}
	}
	return nil
}

// removeResource makes sure that one of the helper's resources is gone.
func (l *Local) removeResource(ctx context.Context, r ledger.Resource) error {
	switch r.Kind {
	case ledger.KindDirectory, ledger.KindSubvolume:
		if r.Owner == cacheOwner {
			// The entry may have got its name just before the crash, and no marker.
			if err := l.caches().Sweep(ctx); err != nil {
				return err
			}
		}
		// Without an identity whatever has got the name goes: a link that was renamed
		// into the trash in a directory's stead is removed itself.
		if r.Identity.Ino != 0 {
			err := l.checkIdentity(r)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		return l.removePath(ctx, r.Path)
	case ledger.KindProcess:
		return l.endProcess(ctx, r)
	case ledger.KindCgroup:
		return l.endGroup(r)
	case ledger.KindProject:
		return l.freeProject(r)
	case ledger.KindImage:
		return l.removeImage(ctx, r)
	}
	return nil // a reference is its record; a uid range is the kernel's to free
}

// checkIdentity refuses to touch a directory that is not the one the ledger
// made: its device and inode were written down when it was made. A record
// without them (the crash came first) is of a place whose name holds 80 random
// bits of ours.
func (l *Local) checkIdentity(r ledger.Resource) error {
	f, err := l.root.OpenFile(r.Path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if r.Identity.Ino == 0 {
		return nil
	}
	if got := identify(f); got.Ino != r.Identity.Ino || got.Dev != r.Identity.Dev {
		// st_dev of a btrfs subvolume, and of loop mounts, changes with each mount;
		// the inode alone decides where the device is the Runtime root's own.
		if got.Ino != r.Identity.Ino || got.Dev != l.root.Device {
			return policy.Errorf(policy.CodeLeftoverForeign, "helper.remove", "%s is not the directory that the ledger made", r.Path)
		}
	}
	return nil
}

// removePath deletes a tree below the Runtime root.
func (l *Local) removePath(ctx context.Context, rel string) error {
	dir, name := splitPath(rel)
	return l.removeDir(ctx, dir, name)
}

func splitPath(rel string) (dir, name string) {
	for i := len(rel) - 1; i >= 0; i-- {
		if rel[i] == '/' {
			return rel[:i], rel[i+1:]
		}
	}
	return ".", rel
}

func (l *Local) removeDir(ctx context.Context, dir, name string) error {
	parent, err := l.root.OpenDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskError("helper.remove", err)
	}
	defer parent.Close()
	return cow.RemoveTree(ctx, parent, name, cow.RemoveOptions{Log: l.log})
}
