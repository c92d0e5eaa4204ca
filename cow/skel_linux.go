package cow

import (
	"context"
	"os"
)

func (btrfsSnapshot) Probe(context.Context, ProbeDir) Support              { return Support{} }
func (btrfsSnapshot) Materialize(context.Context, Request) (Result, error) { return Result{}, nil }
func (overlay) Probe(context.Context, ProbeDir) Support                    { return Support{} }
func (overlay) Materialize(context.Context, Request) (Result, error)       { return Result{}, nil }
func (treeCopy) Probe(context.Context, ProbeDir) Support                   { return Support{} }
func (treeCopy) Materialize(context.Context, Request) (Result, error)      { return Result{}, nil }

// Probe returns what works on the file system of dir, the Runtime root.
func Probe(ctx context.Context, dir *os.File) (*Table, error) { return nil, nil }

// ProbeFresh is Probe without the cached result.
func ProbeFresh(ctx context.Context, dir *os.File) (*Table, error) { return nil, nil }

// MakeTop makes the top directory of a pristine tree: a subvolume on btrfs.
func MakeTop(parent *os.File, name string) error { return nil }

// SealTop makes it read-only where the file system can.
func SealTop(parent *os.File, name string) error { return nil }

// RemoveTop removes the tree, sealed or not.
func RemoveTop(parent *os.File, name string) error { return nil }

// RemoveTree removes what is called name below parent.
func RemoveTree(ctx context.Context, parent *os.File, name string, o RemoveOptions) error { return nil }
