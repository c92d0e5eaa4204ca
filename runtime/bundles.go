package runtime

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/bundle"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

const opBundle = "runtime.bundle"

// bundlesKeptFor is how long gc leaves a bundle that no workspace has.
const bundlesKeptFor = 7 * 24 * time.Hour

// Bundle is a stored configuration bundle. Its digest is its name.
type Bundle struct {
	Digest policy.BundleDigest `json:"digest"`
	Files  int                 `json:"files,omitempty"` // said when it is added
	Bytes  int64               `json:"bytes,omitempty"` // likewise
	// UsedAt is when a Worker was last given it, or it was added.
	UsedAt time.Time `json:"used_at"`
}

// A bundle is made, and taken away, in a directory of config-bundles/ whose name
// begins so; the ledger holds it then. One that has its digest as its name is whole.
const bundleBuild = "cb-"

// AddBundle stores the directory that a tar archive holds under its digest. Storing
// it again is no error.
func (r *Runtime) AddBundle(ctx context.Context, archive io.Reader) (Bundle, error) {
	build := ledger.Resource{ID: ledger.NewResourceID(), Kind: ledger.KindDirectory, Owner: policy.NewID(bundleBuild)}
	build.Path = rootdir.Bundle(build.Owner)
	if err := r.ledger.Intend(ctx, build); err != nil {
		return Bundle{}, err
	}
	b, err := r.buildBundle(ctx, build, archive)
	after := context.WithoutCancel(ctx)
	if rerr := r.dropBundle(after, build); err == nil {
		err = rerr
	}
	if err != nil {
		return Bundle{}, err
	}
	r.event(policy.EventBundleAdded, string(b.Digest), nil)
	return b, nil
}

// buildBundle unpacks into the build directory and gives it its name.
func (r *Runtime) buildBundle(ctx context.Context, build ledger.Resource, archive io.Reader) (b Bundle, err error) {
	fail := func(err error) (Bundle, error) {
		return b, rootdir.Failed(opBundle, "the bundle cannot be stored", err)
	}
	top, err := r.root.Mkdir(build.Path, 0o700)
	if err != nil {
		return fail(err)
	}
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return fail(err)
	}
	if err := r.ledger.Done(build.ID, ledger.Identity{Dev: st.Dev, Ino: st.Ino}); err != nil {
		return b, err
	}
	tree, err := r.root.MkdirAt(top, "tree", 0o755)
	if err != nil {
		return fail(err)
	}
	defer tree.Close()
	if _, err := bundle.Unpack(canceled{ctx, archive}, tree); err != nil {
		if ctx.Err() != nil {
			err = policy.Errorf(policy.CodeCanceled, opBundle, "storing the bundle was canceled").Because(ctx.Err())
		}
		return fail(err)
	}
	if err := r.ownTree(tree); err != nil {
		return fail(err)
	}
	digest, stats, err := bundle.Sum(tree)
	if err != nil {
		return fail(err)
	}
	if err := unix.Syncfs(int(tree.Fd())); err != nil {
		return fail(err)
	}
	hex, err := digest.Hex()
	if err != nil {
		return fail(err)
	}
	b = Bundle{Digest: digest, Files: stats.Files, Bytes: stats.Bytes, UsedAt: r.now()}
	unlock, err := r.lockBundles(unix.LOCK_SH)
	if err != nil {
		return b, err
	}
	defer unlock()
	err = unix.Renameat2(int(r.root.Dir.Fd()), build.Path, int(r.root.Dir.Fd()), rootdir.Bundle(hex), unix.RENAME_NOREPLACE)
	if errors.Is(err, fs.ErrExist) { // and is what it should be, or is said to be damaged
		return b, r.useBundle(digest)
	}
	if err != nil {
		return fail(err)
	}
	return b, nil // dropBundle makes the name durable
}

// ownTree gives root's files to the owner of the Runtime root.
func (r *Runtime) ownTree(top *os.File) error {
	if os.Geteuid() != 0 || (r.root.UID == 0 && r.root.GID == 0) {
		return nil
	}
	entries, err := top.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := unix.Fchownat(int(top.Fd()), e.Name(), r.root.UID, r.root.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if !e.IsDir() {
			continue
		}
		d, err := rootdir.OpenAt(top, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		err = r.ownTree(d)
		d.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// dropBundle removes what is left of a build directory and writes it off.
func (r *Runtime) dropBundle(ctx context.Context, build ledger.Resource) error {
	dir, err := r.root.OpenDir(rootdir.Bundles)
	if err != nil {
		return policy.Errorf(policy.CodeInternal, opBundle, "the bundles' directory cannot be opened").Because(err)
	}
	defer dir.Close()
	if err := cow.RemoveTree(ctx, dir, strings.TrimPrefix(build.Path, rootdir.Bundles+"/"), cow.RemoveOptions{Log: r.log}); err != nil {
		return err
	}
	if err := dir.Sync(); err != nil {
		return policy.Errorf(policy.CodeInternal, opBundle, "the bundles' directory cannot be written").Because(err)
	}
	return r.ledger.Release(build.ID)
}

// recoverBundles removes what dead writers were making, or taking away. It is the
// daemon's, or the embedded command's: no Worker has anything of it.
func (r *Runtime) recoverBundles(ctx context.Context, state *ledger.State, rep *RecoveryReport) error {
	for _, h := range state.Leftovers() {
		name, ok := strings.CutPrefix(h.Resource.Path, rootdir.Bundles+"/")
		if !ok || !strings.HasPrefix(name, bundleBuild) || !policy.ValidID(name) {
			continue
		}
		rep.Leftovers++
		if err := r.dropBundle(ctx, h.Resource); err != nil {
			r.log.Warn("bundle leftover not removed", "path", h.Resource.Path, "error", err)
			rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
			continue
		}
		rep.Removed++
	}
	return r.ledger.Sync(ctx)
}

// checkBundle reads a stored bundle and compares it with its digest; "" is none.
func (r *Runtime) checkBundle(digest policy.BundleDigest) error {
	if digest == "" {
		return nil
	}
	hex, err := digest.Hex()
	if err != nil {
		return err
	}
	tree, err := r.root.OpenDir(rootdir.Bundle(hex) + "/tree")
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Errorf(policy.CodeBundleUnknown, opBundle, "no configuration bundle of that digest is stored").With("bundle", string(digest))
	}
	if err != nil {
		return policy.Errorf(policy.CodeBundleCorrupt, opBundle, "the stored configuration bundle cannot be read").With("bundle", string(digest)).Because(err)
	}
	defer tree.Close()
	got, _, err := bundle.Sum(tree)
	if err != nil || got != digest {
		return policy.Errorf(policy.CodeBundleCorrupt, opBundle, "the stored configuration bundle does not have its digest").With("bundle", string(digest)).Because(err)
	}
	return nil
}

// useBundle is checkBundle for a Worker that is given it: gc counts from now.
func (r *Runtime) useBundle(digest policy.BundleDigest) error {
	if err := r.checkBundle(digest); err != nil || digest == "" {
		return err
	}
	hex, err := digest.Hex()
	if err != nil {
		return err
	}
	top, err := r.root.OpenDir(rootdir.Bundle(hex))
	if err != nil {
		return policy.Errorf(policy.CodeBundleUnknown, opBundle, "no configuration bundle of that digest is stored").With("bundle", string(digest)).Because(err)
	}
	defer top.Close()
	now := unix.NsecToTimespec(r.now().UnixNano())
	if err := unix.UtimesNanoAt(int(top.Fd()), ".", []unix.Timespec{now, now}, 0); err != nil {
		r.log.Debug("the use of a bundle is not noted", "error", err)
	}
	return nil
}

// lockBundles keeps bundles from being taken away while one is put into a
// workspace's policy (LOCK_SH), and the other way round (LOCK_EX).
func (r *Runtime) lockBundles(how int) (unlock func(), err error) {
	d, err := r.lockDir(rootdir.Bundles, how)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, opBundle, "the bundles' directory cannot be locked").Because(err)
	}
	return func() { d.Close() }, nil
}

// holdBundle checks the bundle of a workspace to be and holds it until the record is
// there, by which it is held from then on.
func (c *creation) holdBundle() (release func(), err error) {
	if c.sandbox.ConfigBundle == "" {
		return func() {}, nil
	}
	if release, err = c.r.lockBundles(unix.LOCK_SH); err != nil {
		return nil, err
	}
	if err := c.r.useBundle(c.sandbox.ConfigBundle); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// bundleUsers are the workspaces that have each bundle.
func (r *Runtime) bundleUsers(ctx context.Context) (map[policy.BundleDigest]policy.AllocationID, error) {
	users := make(map[policy.BundleDigest]policy.AllocationID)
	err := r.eachAllocation(ctx, registry.Filter{Status: []string{
		string(registry.AllocationActive), string(registry.AllocationStopped), string(registry.AllocationCleanupPending),
	}}, func(a registry.Allocation) error {
		if d := a.SandboxPolicy.ConfigBundle; d != "" {
			users[d] = a.ID
		}
		return nil
	})
	return users, err
}

// ListBundles returns the stored bundles, the last used first.
func (r *Runtime) ListBundles(context.Context) ([]Bundle, error) {
	dir, err := r.root.OpenDir(rootdir.Bundles)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, opBundle, "the bundles cannot be listed").Because(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, opBundle, "the bundles cannot be listed").Because(err)
	}
	var out []Bundle
	for _, n := range names {
		digest := policy.BundleDigest("sha256:" + n)
		if _, err := digest.Hex(); err != nil {
			continue
		}
		d, err := rootdir.OpenAt(dir, n, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			continue // removed just now
		}
		st, err := d.Stat()
		d.Close()
		if err == nil {
			out = append(out, Bundle{Digest: digest, UsedAt: st.ModTime().UTC()})
		}
	}
	slices.SortFunc(out, func(a, b Bundle) int { return b.UsedAt.Compare(a.UsedAt) })
	return out, nil
}

// RemoveBundle removes a bundle that no workspace has.
func (r *Runtime) RemoveBundle(ctx context.Context, digest policy.BundleDigest) error {
	unlock, err := r.lockBundles(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	users, err := r.bundleUsers(ctx)
	if err != nil {
		return err
	}
	if id := users[digest]; id != "" {
		return policy.Errorf(policy.CodeBundleInUse, opBundle, "the execution workspace %s has the bundle", id).With("workspace", string(id))
	}
	return r.removeBundle(ctx, digest)
}

// removeBundle takes the name away first, in one step: a bundle is whole or not there.
func (r *Runtime) removeBundle(ctx context.Context, digest policy.BundleDigest) error {
	hex, err := digest.Hex()
	if err != nil {
		return err
	}
	trash := ledger.Resource{ID: ledger.NewResourceID(), Kind: ledger.KindDirectory, Owner: policy.NewID(bundleBuild)}
	trash.Path = rootdir.Bundle(trash.Owner)
	if err := r.ledger.Intend(ctx, trash); err != nil {
		return err
	}
	err = unix.Renameat2(int(r.root.Dir.Fd()), rootdir.Bundle(hex), int(r.root.Dir.Fd()), trash.Path, unix.RENAME_NOREPLACE)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = policy.Errorf(policy.CodeBundleUnknown, opBundle, "no configuration bundle of that digest is stored").With("bundle", string(digest))
		}
		return errors.Join(err, r.ledger.Release(trash.ID))
	}
	if err := r.dropBundle(context.WithoutCancel(ctx), trash); err != nil {
		return err
	}
	r.event(policy.EventBundleRemoved, string(digest), nil)
	return nil
}

// evictBundles removes those that no workspace has and that nobody has used for long.
func (r *Runtime) evictBundles(ctx context.Context, dry bool, rep *GCReport) error {
	unlock, err := r.lockBundles(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	list, err := r.ListBundles(ctx) // when each was used does not change from here on
	if err != nil || len(list) == 0 {
		return err
	}
	users, err := r.bundleUsers(ctx)
	if err != nil {
		return err
	}
	for _, b := range list {
		if users[b.Digest] != "" {
			rep.InUse++
			continue
		}
		if r.now().Sub(b.UsedAt) < bundlesKeptFor {
			continue
		}
		hex, err := b.Digest.Hex()
		if err != nil {
			return err
		}
		bytes, err := r.exclusive(ctx, rootdir.Bundle(hex))
		if err == nil && !dry {
			err = r.removeBundle(ctx, b.Digest)
		}
		if err != nil {
			return err
		}
		rep.add("config_bundle", string(b.Digest), bytes)
	}
	return nil
}
