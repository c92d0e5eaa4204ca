package main

import (
	"context"
	"errors"
	"fmt"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// measuredWorkspace is a workspace with --disk, in JSON.
type measuredWorkspace struct {
	runtime.Workspace
	Disk *runtime.DiskUsage `json:"disk,omitempty"`
}

type measuredList struct {
	Items []measuredWorkspace `json:"items"`
	Next  string              `json:"next,omitempty"`
}

// measured asks for a workspace's disk. One that went meanwhile has none.
func measured(ctx context.Context, s runtime.Service, w runtime.Workspace) (measuredWorkspace, error) {
	out := measuredWorkspace{Workspace: w}
	u, err := s.WorkspaceDisk(ctx, w.ID)
	if errors.Is(err, policy.CodeAllocationUnknown) {
		return out, nil
	}
	if err == nil {
		out.Disk = &u
	}
	return out, err
}

// diskCells are the columns EXCLUSIVE and REFERENCED.
func (w measuredWorkspace) diskCells() (exclusive, referenced string) {
	if w.Disk == nil {
		return "", ""
	}
	atLeast := ""
	if w.Disk.Partial {
		atLeast = ">"
	}
	return atLeast + size(w.Disk.ExclusiveBytes), atLeast + size(w.Disk.ReferencedBytes)
}

func (a *app) listMeasured(ctx context.Context, s runtime.Service, page runtime.WorkspaceList) error {
	out := measuredList{Items: []measuredWorkspace{}, Next: page.Next}
	for _, w := range page.Items {
		m, err := measured(ctx, s, w)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, m)
	}
	if a.json {
		return a.printJSON(out)
	}
	rows := make([][]string, 0, len(out.Items))
	for _, w := range out.Items {
		repo, commit, _ := pointOf(w.Workspace)
		exclusive, referenced := w.diskCells()
		rows = append(rows, []string{string(w.ID), string(w.Status), repo, commit, string(w.Strategy), exclusive, referenced})
	}
	if err := a.table([]string{"ID", "STATUS", "REPOSITORY", "COMMIT", "STRATEGY", "EXCLUSIVE", "REFERENCED"}, rows); err != nil {
		return err
	}
	return a.more(page.Next)
}

func (a *app) showMeasured(ctx context.Context, s runtime.Service, w runtime.Workspace) error {
	m, err := measured(ctx, s, w)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(m)
	}
	if err := a.showWorkspace(w); err != nil || m.Disk == nil {
		return err
	}
	exclusive, referenced := m.diskCells()
	return a.pairs("disk", fmt.Sprintf("%s of its own, %s with what it shares, %s", exclusive, referenced, count(int(m.Disk.Inodes), "inode")))
}
