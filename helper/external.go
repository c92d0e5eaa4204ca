package helper

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// An external command is not trusted with more than its two directories: it runs
// in a sandbox as a Worker does, with the pristine tree read-only and an empty
// directory beside it, both bind mounts, since what it is for (reflinks,
// snapshots) does not go through an overlay. That they name their paths on the
// host in mountinfo is no secret from an operator's own program. What it made
// counts only when Adopt has compared it.
const (
	externalSourceAt = "/run/yoi/source"
	externalTargetAt = "/run/yoi/target"
	// externalTree is what the command makes in its target directory.
	externalTree = "tree"
)

func cwdRoot(req LaunchRequest) string {
	if req.External {
		return externalTargetAt
	}
	return policy.WorkspacePath(req.RepositoryID)
}

// externalDir makes the directory for a command's result.
func (l *Local) externalDir(top *os.File, repo policy.RepositoryID) error {
	parent, err := l.root.MkdirAt(top, "external", 0o700)
	if errors.Is(err, unix.EEXIST) { // for another repository
		parent, err = rootdir.OpenAt(top, "external", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	d, err := l.root.MkdirAt(parent, string(repo), 0o700)
	if err != nil {
		return err
	}
	return d.Close()
}

func externalOps(req LaunchRequest, src sources) ([]mounts.Op, error) {
	t := req.Repositories[0]
	ro := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}
	source, err := src.source(rootdir.Tree(t.RepositoryID, t.TreeKey), ro)
	if err != nil {
		return nil, err
	}
	rw := mounts.Attr{NoSuid: true, NoDev: true}
	target, err := src.source(rootdir.External(req.AllocationID, t.RepositoryID), rw)
	if err != nil {
		return nil, err
	}
	return []mounts.Op{
		mounts.Bind{Target: externalSourceAt, Source: source, Attr: ro},
		mounts.Bind{Target: externalTargetAt, Source: target, Attr: rw},
	}, nil
}

// Adopt takes over what an external command made. The command has ended, with
// every process of its sandbox: nobody writes to the tree any more.
func (l *Local) Adopt(ctx context.Context, req MaterializeRequest) (MaterializeResult, error) {
	const op = "helper.adopt"
	res := MaterializeResult{Repositories: req.Repositories}
	if err := req.validate(); err != nil {
		return res, err
	}
	if len(req.Repositories) != 1 || req.Repositories[0].Strategy != policy.StrategyExternal {
		return res, policy.Errorf(policy.CodeBadRequest, op, "one repository of the strategy external is adopted at a time")
	}
	t := req.Repositories[0]
	source, err := l.root.OpenDir(rootdir.Tree(t.RepositoryID, t.TreeKey))
	if err != nil {
		return res, policy.Errorf(policy.CodeCacheCorrupt, op, "the pristine tree of %s is not in the cache", t.RepositoryID).Because(err)
	}
	defer source.Close()
	from, err := l.root.OpenDir(rootdir.External(req.AllocationID, t.RepositoryID))
	if err != nil {
		return res, diskError(op, err)
	}
	defer from.Close()
	made, err := rootdir.OpenAt(from, externalTree, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return res, policy.Errorf(policy.CodeExternalWrong, op, "the command made no directory %q in its target", externalTree).Because(err)
	}
	defer made.Close()
	x, err := treeIndex(source, t.TreeKey)
	if err != nil {
		return res, err
	}
	var each func(string, *cow.Statx)
	if x != nil {
		each = restat(x)
	}
	same, err := cow.Same(ctx, source, made, each)
	if err != nil {
		return res, err
	}
	res.Files, res.Bytes = same.Files, same.Bytes
	if x != nil {
		base, err := l.root.OpenDir(rootdir.BaseIndex(req.AllocationID, t.RepositoryID))
		if err != nil {
			return res, diskError(op, err)
		}
		defer base.Close()
		if err := l.writeIndex(made, base, x, t.RepositoryID); err != nil {
			return res, err
		}
	}
	root, err := l.root.OpenDir(rootdir.Workspace(req.AllocationID) + "/root")
	if err != nil {
		return res, diskError(op, err)
	}
	defer root.Close()
	if err := unix.Renameat2(int(from.Fd()), externalTree, int(root.Fd()), string(t.RepositoryID), unix.RENAME_NOREPLACE); err != nil {
		return res, diskError(op, err)
	}
	adopted := t
	adopted.Strategy = policy.StrategyCopy // as any tree that is there
	if err := l.copyCaches(ctx, req.AllocationID, []RepositoryTree{adopted}); err != nil {
		return res, err
	}
	return res, l.removePath(ctx, rootdir.External(req.AllocationID, t.RepositoryID))
}
