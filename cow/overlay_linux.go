package cow

import (
	"context"
	"runtime"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// UpperName and WorkName are what the overlay strategy makes in
// Request.Layers. Work must be empty and on upper's file system
// (overlayfs.rst, "upperdir and workdir").
const (
	UpperName = "upper"
	WorkName  = "work"
)

// overlay prepares an overlay mount: upperdir, workdir and the mount point. The
// mount itself is made in the Worker's own namespaces with userxattr, so that
// no crash can leave one behind on the host.
type overlay struct{}

func (overlay) Name() policy.StrategyName { return policy.StrategyOverlay }

// Materialize makes the three directories. The upper directory shows as the
// workspace's top, so it gets the source top's attributes.
func (overlay) Materialize(ctx context.Context, r Request) (Result, error) {
	const op = "cow.overlay"
	w := &walk{op: op, req: &r, me: whoAmI()}
	defer runtime.KeepAlive(&r)
	if err := checkRequest(ctx, op, &r); err != nil {
		return Result{}, err
	}
	if r.Layers == nil {
		return Result{}, policy.Errorf(policy.CodeInternal, op, "the request has no directory for the layers")
	}
	var st unix.Statx_t
	if err := statxFd(fd(r.Source), dirMask, &st); err != nil {
		return Result{}, diagnose(op, onSource, "", err)
	}
	if err := mkdirat(fd(r.TargetParent), newCname(r.TargetName), 0o700); err != nil {
		return Result{}, diagnose(op, onTarget, "", err)
	}
	for _, name := range []string{UpperName, WorkName} {
		layer := *w.req
		layer.TargetParent, layer.TargetName = r.Layers, name
		lw := &worker{walk: &walk{op: op, req: &layer, me: w.me}, list: make([]byte, 1024)}
		if err := lw.layer(&st, name == UpperName); err != nil {
			return Result{}, err
		}
		w.warnings.first = append(w.warnings.first, lw.warnings.list()...)
	}
	return Result{Strategy: policy.StrategyOverlay, Overlay: true, Warnings: w.warnings.list()}, nil
}

// layer makes one of the two. work gets only the owner: the mount is made by
// whom the files belong to.
func (w *worker) layer(st *unix.Statx_t, attrs bool) error {
	dir, err := w.makeTarget()
	if err != nil {
		return err
	}
	defer closeFd(dir)
	n := &dirNode{src: fd(w.req.Source), dst: dir}
	if attrs {
		_, err = w.setAttrs(n.src, dir, st, 0o700, n, nil)
		return err
	}
	if chown, _ := w.ownership(st); chown {
		if err := fchown(dir, st.Uid, st.Gid); err != nil && err != unix.EPERM && err != unix.EINVAL {
			return w.fail(onTarget, n, nil, err)
		}
	}
	return nil
}
