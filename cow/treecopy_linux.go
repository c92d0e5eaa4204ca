package cow

import (
	"context"
	"log/slog"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// treeCopy walks the tree file by file: reflink when clone is set, else copy.
type treeCopy struct{ clone bool }

func (s treeCopy) Name() policy.StrategyName {
	if s.clone {
		return policy.StrategyReflink
	}
	return policy.StrategyCopy
}

// Materialize makes the target directory and copies into it.
func (s treeCopy) Materialize(ctx context.Context, r Request) (Result, error) {
	op := "cow." + string(s.Name())
	w := &walk{op: op, clone: s.clone, ficlone: ficlone, req: &r}
	return w.materialize(ctx, s.Name())
}

func (w *walk) materialize(ctx context.Context, name policy.StrategyName) (Result, error) {
	r := w.req
	defer runtime.KeepAlive(r)
	if err := checkRequest(ctx, w.op, r); err != nil {
		return Result{}, err
	}
	w.me = whoAmI()
	// Reading a directory moves its description's offset, which the caller's
	// descriptor shares with whoever else has it: open an own one.
	src, err := openBeneath(fd(r.Source), cname(".\x00"), openDir)
	if err != nil {
		return Result{}, diagnose(w.op, onSource, "", err)
	}
	defer closeFd(src)
	var st unix.Statx_t
	if err := statxFd(src, dirMask, &st); err != nil {
		return Result{}, diagnose(w.op, onSource, "", err)
	}
	w.dev = devOf(&st)
	dst, err := w.makeTarget()
	if err != nil {
		return Result{}, err
	}
	defer closeFd(dst)
	w.top = &dirNode{src: src, dst: dst}
	workers := r.Parallel
	if workers <= 0 {
		workers = defaultWorkers(fileSystemOf(dst))
	}
	res, err := w.run(ctx, workers)
	res.Strategy = name
	if r.Log != nil {
		r.Log.LogAttrs(ctx, slog.LevelDebug, "tree copied", slog.String("strategy", string(name)), slog.Int("workers", workers),
			slog.Int64("files", res.Files), slog.Int64("cloned", res.Cloned), slog.Int64("copied", res.Copied))
	}
	return res, err
}

// makeTarget makes and opens the target's top, without what it inherited: a
// default ACL or a set-group-ID bit of its parent would mark every file below.
func (w *walk) makeTarget() (int, error) {
	parent, name := fd(w.req.TargetParent), newCname(w.req.TargetName)
	if err := mkdirat(parent, name, 0o700); err != nil {
		return -1, diagnose(w.op, onTarget, "", err)
	}
	dst, err := openBeneath(parent, name, openDir)
	if err != nil {
		return -1, diagnose(w.op, onTarget, "", err)
	}
	var st unix.Statx_t
	if err = statxFd(dst, dirMask, &st); err == nil {
		err = disinherit(dst)
	}
	if err != nil {
		closeFd(dst)
		return -1, diagnose(w.op, onTarget, "", err)
	}
	w.target = inodeOf(&st)
	w.strangeGroup = st.Gid != w.me.gid
	return dst, nil
}

func disinherit(dir int) error {
	for _, acl := range []string{"system.posix_acl_default", "system.posix_acl_access"} {
		if err := unix.Fremovexattr(dir, acl); err != nil && err != unix.ENODATA && err != unix.EOPNOTSUPP {
			return err
		}
	}
	return fchmod(dir, 0o700)
}

func checkRequest(ctx context.Context, op string, r *Request) error {
	if err := ctxErr(ctx, op); err != nil {
		return err
	}
	if r.Source == nil || r.TargetParent == nil {
		return policy.Errorf(policy.CodeInternal, op, "the request has no source or no target")
	}
	return checkName(op, r.TargetName)
}

func fd(f *os.File) int { return int(f.Fd()) }
