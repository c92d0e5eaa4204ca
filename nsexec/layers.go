package nsexec

import (
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// skeletonDir is the name of the root's uppermost layer on the stage.
const skeletonDir = "top"

// layeredRoot makes the root of a plan with layers: the tmpfs in slotTree gets
// every directory, file and link of the plan, and becomes the uppermost layer of
// a read-only overlay. A lower layer must not change while it is mounted, so all
// of it is made before; and since names resolve in the uppermost layer first,
// each mount point is the plan's own, whatever the image has there.
func (b *script) layeredRoot(made map[string]bool) {
	b.onStage(skeletonDir)
	b.Add(unix.SYS_DUP, slotTree.Arg()).Save(slotRoot)
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
	b.skeleton(made)
	b.Add(unix.SYS_CLOSE, slotRoot.Arg())

	b.step("mounting the image", policy.CodeMountFailed, "/")
	b.Add(unix.SYS_FCHDIR, slotStage.Arg())
	lower := []string{skeletonDir}
	for _, l := range b.spec.Plan.Layers {
		lower = append(lower, b.layer(l))
	}
	b.newfs("overlay", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
		option{"lowerdir", strings.Join(lower, ":")}, option{key: "userxattr"})
	b.becomeRoot()
}

// skeleton makes what the plan's operations need to find, but for what lies
// inside one of the plan's own mounts.
func (b *script) skeleton(made map[string]bool) {
	mounted := map[string]bool{}
	for _, op := range b.spec.Plan.Ops {
		at := op.Where()
		if insideOf(at, mounted) {
			continue
		}
		b.step("making the "+op.Kind(), policy.CodeMountFailed, at)
		b.parents(at, made)
		switch o := op.(type) {
		case mounts.Dir, mounts.Symlink, mounts.File:
			b.one(op, made)
		case mounts.Bind:
			b.placeholder(at, o.IsFile, made)
			mounted[at] = true
		case mounts.Dev:
			b.devSkeleton(o, made)
			mounted[at] = true
		default:
			b.placeholder(at, false, made)
			mounted[at] = true
		}
	}
}

func (b *script) devSkeleton(o mounts.Dev, made map[string]bool) {
	b.placeholder(o.Target, false, made)
	for _, n := range devNodes {
		b.placeholder(o.Target+"/"+n, true, made)
	}
	for _, l := range devLinks {
		b.symlink(o.Target+"/"+l[0], l[1], made)
	}
	b.placeholder(o.Target+"/pts", false, made)
	b.placeholder(o.Target+"/shm", false, made)
}

func insideOf(at string, mounted map[string]bool) bool {
	for i, c := range at {
		if c == '/' && i > 0 && mounted[at[:i]] {
			return true
		}
	}
	return false
}
