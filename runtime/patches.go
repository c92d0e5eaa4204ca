package runtime

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/patch"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

const opPatch = "runtime.patch"

func patchDigest(b []byte) policy.PatchDigest {
	h := sha256.Sum256(b)
	return policy.PatchDigest(policy.FormatDigest(h[:]))
}

// AddPatch checks a patch and stores it under its digest. Storing it again is no
// error. The file is made without a name and gets it when it is whole and on the
// disk, so that no crash leaves half of one, or a temporary file (O_TMPFILE in
// open(2)).
func (r *Runtime) AddPatch(_ context.Context, req AddPatchRequest) (Patch, error) {
	sum, err := patch.Read(req.Content)
	if err != nil {
		return Patch{}, err
	}
	p := Patch{Digest: patchDigest(req.Content), Bytes: int64(len(req.Content)), Files: sum.Files, AddedAt: r.now(), UsedAt: r.now()}
	name, err := p.Digest.Hex()
	if err != nil {
		return Patch{}, err
	}
	if err := r.storePatch(name, req.Content); err != nil {
		return Patch{}, rootdir.Failed(opPatch, "the patch cannot be stored", err)
	}
	r.event(policy.EventPatchAdded, name, nil)
	return p, nil
}

func (r *Runtime) storePatch(name string, content []byte) error {
	dir, err := r.root.Ensure(rootdir.Patches)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := flock(dir, unix.LOCK_SH); err != nil {
		return err
	}
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return &fs.PathError{Op: "openat", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if os.Geteuid() == 0 && r.root.UID != 0 {
		if err := f.Chown(r.root.UID, r.root.GID); err != nil {
			return err
		}
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EEXIST) {
		return touchPatch(dir, name)
	}
	if err != nil {
		return &fs.PathError{Op: "linkat", Path: name, Err: err}
	}
	return dir.Sync()
}

// readPatch returns a stored patch whose content has its digest.
func (r *Runtime) readPatch(digest policy.PatchDigest) (*storedPatch, error) {
	name, err := digest.Hex()
	if err != nil {
		return nil, err
	}
	b, err := r.usePatch(name, patch.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, policy.Errorf(policy.CodePatchUnknown, opPatch, "no patch of that digest is stored").With("patch", string(digest))
	}
	if err != nil {
		return nil, policy.Errorf(policy.CodePatchCorrupt, opPatch, "the stored patch cannot be read").With("patch", string(digest)).Because(err)
	}
	if patchDigest(b) != digest {
		return nil, policy.Errorf(policy.CodePatchCorrupt, opPatch, "the stored patch does not have its digest").With("patch", string(digest))
	}
	return checkedPatch(b)
}

// storedPatch is a patch that has been read and checked.
type storedPatch struct {
	digest  policy.PatchDigest
	content []byte
	patch.Summary
}

func checkedPatch(b []byte) (*storedPatch, error) {
	sum, err := patch.Read(b)
	if err != nil {
		return nil, err
	}
	return &storedPatch{patchDigest(b), b, sum}, nil
}

// ListPatches returns the stored patches, the newest first.
func (r *Runtime) ListPatches(context.Context) ([]Patch, error) {
	dir, err := r.root.OpenDir(rootdir.Patches)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, policy.AsDiagnostic(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, policy.AsDiagnostic(err)
	}
	var out []Patch
	for _, n := range names {
		f, err := rootdir.OpenAt(dir, n, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // removed just now
		}
		st, err := f.Stat()
		f.Close()
		digest := policy.PatchDigest("sha256:" + n)
		if _, perr := digest.Hex(); err == nil && perr == nil && st.Mode().IsRegular() {
			p := Patch{Digest: digest, Bytes: st.Size(), AddedAt: st.ModTime().UTC()}
			p.UsedAt = p.AddedAt
			if at := time.Unix(st.Sys().(*syscall.Stat_t).Atim.Unix()).UTC(); at.After(p.UsedAt) {
				p.UsedAt = at
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Patch) int { return b.AddedAt.Compare(a.AddedAt) })
	return out, nil
}

// RemovePatch forgets a stored patch. Workspaces that were made with it stay.
func (r *Runtime) RemovePatch(_ context.Context, digest policy.PatchDigest) error {
	name, err := digest.Hex()
	if err != nil {
		return err
	}
	dir, err := r.root.OpenDir(rootdir.Patches)
	if err == nil {
		defer dir.Close()
		err = unix.Unlinkat(int(dir.Fd()), name, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Errorf(policy.CodePatchUnknown, opPatch, "no patch of that digest is stored").With("patch", string(digest))
	}
	if err != nil {
		return policy.Errorf(policy.CodeInternal, opPatch, "the patch cannot be removed").Because(err)
	}
	return dir.Sync()
}
