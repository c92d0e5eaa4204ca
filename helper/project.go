package helper

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// A project id belongs to a file system, which several Runtime roots may share, so
// whoever takes one holds a lock of the whole host from finding it unused until the
// allocation's directory has it.
const projectsLock = "/run/yoi-project-ids"

// attrProject is the id in a ledger record.
const attrProject = "project"

// projectClaim is an id that nobody else takes until release.
type projectClaim struct {
	id   uint32
	lock *os.File
}

func (c *projectClaim) release() {
	if c.lock != nil {
		c.lock.Close()
		c.lock = nil
	}
}

// claimProject finds an id, if the quota is to be held by one: 0 if not.
func (l *Local) claimProject(ev policy.QuotaEvidence) (*projectClaim, error) {
	c := &projectClaim{}
	if ev.Bytes != policy.QuotaProject && ev.Inodes != policy.QuotaProject {
		return c, nil
	}
	fail := func(err error) error {
		return policy.Errorf(policy.CodeQuotaUnsupported, "helper.project", "no project id can be had").Because(err)
	}
	var err error
	if c.lock, err = os.OpenFile(projectsLock, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600); err != nil {
		return c, fail(err)
	}
	for {
		if err = unix.Flock(int(c.lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		c.id, err = cow.FreeProject(l.root.Dir, rand.Uint32N(cow.ProjectIDCount))
	}
	if err != nil {
		c.release()
		return c, fail(err)
	}
	return c, nil
}

// resource is the claim's intent.
func (c *projectClaim) resource(id policy.AllocationID) ledger.Resource {
	r := newResource(ledger.KindProject, id, rootdir.Workspace(id))
	r.Attrs = map[string]string{attrProject: strconv.FormatUint(uint64(c.id), 10)}
	return r
}

// makeProject makes an allocation's directory in a project. Its inodes are limited
// when they can be counted: see limitInodes.
func (l *Local) makeProject(id policy.AllocationID, q policy.Quota, project uint32) (*os.File, error) {
	top, err := l.root.Mkdir(rootdir.Workspace(id), 0o700)
	if err != nil {
		return nil, err
	}
	if err = cow.SetProject(top, project); err == nil {
		err = cow.LimitProject(l.root.Dir, project, q.Bytes, 0)
	}
	if err != nil {
		top.Close()
		return nil, err
	}
	return top, nil
}

// freeProject takes a limit away that limits nothing any more. An id that an inode
// still has keeps it: after a rollback the allocation's own directory has the other's,
// and what lies in the trash counts until it is gone. Nobody takes such an id, and
// whoever takes it later sets a limit of its own.
func (l *Local) freeProject(r ledger.Resource) error {
	id, err := strconv.ParseUint(r.Attrs[attrProject], 10, 32)
	if err != nil || id < cow.ProjectIDs || id >= cow.ProjectIDs+cow.ProjectIDCount {
		return nil // no record of ours
	}
	u, err := cow.UsageOfProject(l.root.Dir, uint32(id))
	if err == nil && u == (cow.ProjectUsage{}) {
		err = cow.LimitProject(l.root.Dir, uint32(id), 0, 0)
	}
	if errors.Is(err, policy.CodeQuotaUnsupported) {
		return nil // quotas were switched off: so is the limit
	}
	return err
}
