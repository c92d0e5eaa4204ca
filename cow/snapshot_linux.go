package cow

import (
	"context"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// btrfsSnapshot makes a writable snapshot of the pristine tree's subvolume:
// one transaction, however large the tree.
type btrfsSnapshot struct{}

func (btrfsSnapshot) Name() policy.StrategyName { return policy.StrategyBtrfsSnapshot }

func (btrfsSnapshot) Materialize(ctx context.Context, r Request) (Result, error) {
	const op = "cow.btrfs_snapshot"
	defer runtime.KeepAlive(&r)
	if err := checkRequest(ctx, op, &r); err != nil {
		return Result{}, err
	}
	if err := checkSubvolume(op, fd(r.Source)); err != nil {
		return Result{}, err
	}
	switch err := snapCreate(fd(r.TargetParent), fd(r.Source), r.TargetName); err {
	case nil:
		return Result{Strategy: policy.StrategyBtrfsSnapshot}, nil
	case unix.EXDEV, unix.ENOTTY, unix.EOPNOTSUPP:
		return Result{}, policy.Errorf(policy.CodeStrategyUnsupported, op, "the target is not on the source's btrfs").Because(err)
	case unix.EPERM, unix.EACCES:
		return Result{}, policy.Errorf(policy.CodeStrategyUnsupported, op, "the source subvolume belongs to another user").Because(err)
	default:
		return Result{}, diagnose(op, onTarget, "", err)
	}
}

// checkSubvolume refuses what a snapshot would silently change: a directory
// that is no subvolume's top, and one with subvolumes inside, which a snapshot
// turns into empty directories (inode 2; kdave/btrfs-progs#543).
func checkSubvolume(op string, src int) error {
	var st unix.Statx_t
	if err := statxFd(src, dirMask, &st); err != nil {
		return diagnose(op, onSource, "", err)
	}
	if !isSubvolume(src, st.Ino) {
		return policy.Errorf(policy.CodeStrategyUnsupported, op, "the source is not a btrfs subvolume").
			With("file_system", fileSystemOf(src)).
			WithHint("Rebuild the pristine tree on btrfs, or use another strategy.")
	}
	nested, err := nestedSubvolumes(src)
	if err != nil {
		return diagnose(op, onSource, "", err)
	}
	if len(nested) > 0 {
		return policy.Errorf(policy.CodeNestedFileSystem, op, "the source has subvolumes inside, which a snapshot would leave empty").
			With("path", strings.Join(nested, ", ")).With("count", strconv.Itoa(len(nested)))
	}
	return nil
}
