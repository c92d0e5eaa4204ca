package cow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

func platformStrategies() []Strategy { return []Strategy{apfsClonefile{}} }

// apfsClonefile clones the whole tree with one clonefile(2). It shows that the
// interface has room for macOS; that it compiles is all that is checked.
type apfsClonefile struct{}

func (apfsClonefile) Name() policy.StrategyName { return policy.StrategyAPFSClonefile }

// Probe clones one file.
func (apfsClonefile) Probe(_ context.Context, d ProbeDir) Support {
	defer runtime.KeepAlive(d.Dir)
	dir := int(d.Dir.Fd())
	f, err := unix.Openat(dir, "a", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = errors.Join(unix.Close(f), unix.Clonefileat(dir, "a", dir, "b", unix.CLONE_NOFOLLOW))
	}
	if err != nil {
		return Support{Reason: fmt.Sprintf("files cannot be cloned here (clonefile: %v)", err), Fix: "Put the Runtime root on APFS."}
	}
	return Support{OK: true, Reason: "clonefile(2) clones a whole tree that shares its blocks"}
}

// Materialize makes the target.
func (apfsClonefile) Materialize(ctx context.Context, r Request) (Result, error) {
	const op = "cow.apfs_clonefile"
	defer runtime.KeepAlive(&r)
	if err := ctx.Err(); err != nil {
		return Result{}, policy.Errorf(policy.CodeCanceled, op, "the operation was canceled").Because(err)
	}
	if n := r.TargetName; n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
		return Result{}, policy.Errorf(policy.CodeBadRequest, op, "%q is not a name of one path component", policy.Printable(n))
	}
	err := unix.Fclonefileat(int(r.Source.Fd()), int(r.TargetParent.Fd()), r.TargetName, unix.CLONE_NOFOLLOW)
	switch {
	case err == nil:
		return Result{Strategy: policy.StrategyAPFSClonefile}, nil
	case errors.Is(err, os.ErrExist):
		return Result{}, policy.Errorf(policy.CodeConflict, op, "the target exists already").Because(err)
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTSUP):
		return Result{}, policy.Errorf(policy.CodeStrategyUnsupported, op, "the target is not on the source's APFS volume").Because(err)
	case errors.Is(err, unix.ENOSPC):
		return Result{}, policy.Errorf(policy.CodeDiskFull, op, "no space is left on the file system").Because(err)
	}
	return Result{}, policy.Errorf(policy.CodeCopyFailed, op, "the tree could not be cloned").Because(err)
}
