package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// When a patch was last used is its file's access time, which whoever uses it sets
// under a shared lock on the store's directory. gc looks and removes under an
// exclusive one: a patch that a workspace is just being made with is never too old.

// never as patches_unused_for keeps patches until they are removed by name.
const never = "never"

const defaultPatchesUnusedFor = 30 * 24 * time.Hour

// patchesUnusedFor is how long a patch may go unused, 0 for ever.
func (c Config) patchesUnusedFor() (time.Duration, error) {
	switch s := c.Cache.PatchesUnusedFor; s {
	case "":
		return defaultPatchesUnusedFor, nil
	case never:
		return 0, nil
	default:
		d, err := time.ParseDuration(s)
		if err != nil || d < time.Minute {
			return 0, policy.Errorf(policy.CodeConfigInvalid, "runtime.config", "cache.patches_unused_for: %q is neither %q nor a duration of a minute or more, such as 720h", policy.Printable(s), never)
		}
		return d, nil
	}
}

// lockDir opens a directory of the Runtime root and locks it until it is closed.
func (r *Runtime) lockDir(rel string, how int) (*os.File, error) {
	dir, err := r.root.OpenDir(rel)
	if err != nil {
		return nil, err
	}
	if err := flock(dir, how); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// usePatch reads a stored patch, and marks it as used. The time of its making stays.
func (r *Runtime) usePatch(name string, limit int64) ([]byte, error) {
	dir, err := r.lockDir(rootdir.Patches, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	b, err := r.root.ReadFile(rootdir.Patches+"/"+name, limit)
	if err != nil {
		return nil, err
	}
	return b, touchPatch(dir, name)
}

func touchPatch(dir *os.File, name string) error {
	return unix.UtimesNanoAt(int(dir.Fd()), name, []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}, unix.AT_SYMLINK_NOFOLLOW)
}

// evictPatches removes those that nobody has used for the configured time, except
// what a workspace that is still there was made with.
func (r *Runtime) evictPatches(ctx context.Context, dry bool, rep *GCReport) error {
	limit, err := r.config().patchesUnusedFor()
	if err != nil || limit == 0 {
		return err
	}
	dir, err := r.lockDir(rootdir.Patches, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return policy.Errorf(policy.CodeInternal, opPatch, "the patch store cannot be opened").Because(err)
	}
	defer dir.Close()
	before := r.now().Add(-limit)
	var old []Patch
	list, err := r.ListPatches(ctx)
	for _, p := range list {
		if p.UsedAt.Before(before) {
			old = append(old, p)
		}
	}
	if err != nil || len(old) == 0 {
		return err
	}
	needed, err := r.neededPatches(ctx)
	if err != nil {
		return err
	}
	for _, p := range old {
		if needed[string(p.Digest)] {
			rep.InUse++
			continue
		}
		name, err := p.Digest.Hex()
		if err != nil {
			return err
		}
		if !dry {
			err = unix.Unlinkat(int(dir.Fd()), name, 0)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by name just now
		}
		if err != nil {
			return policy.Errorf(policy.CodeInternal, opPatch, "an unused patch cannot be removed").Because(err)
		}
		rep.add("patch", string(p.Digest), p.Bytes)
		if !dry {
			r.event(policy.EventPatchRemoved, name, nil)
		}
	}
	return dir.Sync()
}

// neededPatches are the digests in the evidence of all workspaces that are there.
func (r *Runtime) neededPatches(ctx context.Context) (map[string]bool, error) {
	needed := make(map[string]bool)
	err := r.eachAllocation(ctx, registry.Filter{Status: []string{
		string(registry.AllocationActive), string(registry.AllocationStopped), string(registry.AllocationFailed), string(registry.AllocationCleanupPending),
	}}, func(a registry.Allocation) error {
		var ev Evidence
		if err := json.Unmarshal(a.Evidence, &ev); err != nil && len(a.Evidence) > 0 {
			return policy.Errorf(policy.CodeRegistryFailed, opPatch, "the evidence of %s cannot be read", a.ID).Because(err)
		}
		for _, d := range ev.Changes {
			needed[d.Digest] = true
		}
		return nil
	})
	return needed, err
}
