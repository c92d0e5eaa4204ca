package registry

import (
	"context"
	"errors"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

var errStub = errors.New("stub")

type Registry struct{}

// Open opens or makes <root>/runtime.db.
func Open(ctx context.Context, path string) (*Registry, error) { return nil, errStub }
func (r *Registry) Close() error                               { return errStub }

// RuntimeID returns the Runtime's identity, made at the first open.
func (r *Registry) RuntimeID(ctx context.Context) (policy.RuntimeID, error) { return "", errStub }

// PutRepository registers; the same id with another source is CodeRepositoryExists.
func (r *Registry) PutRepository(ctx context.Context, v Repository) error { return errStub }
func (r *Registry) GetRepository(ctx context.Context, id policy.RepositoryID) (Repository, error) {
	return Repository{}, errStub
}
func (r *Registry) ListRepositories(ctx context.Context) ([]Repository, error) { return nil, errStub }
func (r *Registry) UpdateRepository(ctx context.Context, id policy.RepositoryID, change func(*Repository) error) (Repository, error) {
	return Repository{}, errStub
}

// DeleteRepository refuses with CodeRepositoryInUse while an allocation that is not removed stands on it.
func (r *Registry) DeleteRepository(ctx context.Context, id policy.RepositoryID) error {
	return errStub
}

func (r *Registry) PutAllocation(ctx context.Context, v Allocation) error { return errStub }
func (r *Registry) GetAllocation(ctx context.Context, id policy.AllocationID) (Allocation, error) {
	return Allocation{}, errStub
}
func (r *Registry) ListAllocations(ctx context.Context, f Filter) (Page[Allocation], error) {
	return Page[Allocation]{}, errStub
}

// UpdateAllocation reads, changes and writes in one transaction; change may move the status only as the states allow.
func (r *Registry) UpdateAllocation(ctx context.Context, id policy.AllocationID, change func(*Allocation) error) (Allocation, error) {
	return Allocation{}, errStub
}

// SetAllocationStatus moves from one of the from states to to: compare and set. CodeConflict if it is in none of them.
func (r *Registry) SetAllocationStatus(ctx context.Context, id policy.AllocationID, to AllocationStatus, from ...AllocationStatus) (Allocation, error) {
	return Allocation{}, errStub
}

// ExpiredAllocations lists stopped or failed allocations whose cleanup deadline has passed.
func (r *Registry) ExpiredAllocations(ctx context.Context, now time.Time) ([]Allocation, error) {
	return nil, errStub
}

func (r *Registry) PutWorker(ctx context.Context, v Worker) error { return errStub }
func (r *Registry) GetWorker(ctx context.Context, id policy.WorkerID) (Worker, error) {
	return Worker{}, errStub
}
func (r *Registry) ListWorkers(ctx context.Context, f Filter) (Page[Worker], error) {
	return Page[Worker]{}, errStub
}
func (r *Registry) UpdateWorker(ctx context.Context, id policy.WorkerID, change func(*Worker) error) (Worker, error) {
	return Worker{}, errStub
}

// Claim takes an idempotency key. first is true for the caller who is to do the work and then Answer.
// An answered key returns its Response; the same key with another digest, or one still under way, is CodeConflict.
func (r *Registry) ClaimKey(ctx context.Context, key, digest string) (k IdempotencyKey, first bool, err error) {
	return IdempotencyKey{}, false, errStub
}
func (r *Registry) AnswerKey(ctx context.Context, key string, response []byte) error { return errStub }
func (r *Registry) ForgetKey(ctx context.Context, key string) error                  { return errStub }
func (r *Registry) ForgetKeysBefore(ctx context.Context, t time.Time) (int, error)   { return 0, errStub }
