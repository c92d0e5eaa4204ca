package runtime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// AddRepository registers a source. It must be reachable by the Runtime, which
// looks at it at the first resolve or fetch.
func (r *Runtime) AddRepository(ctx context.Context, req AddRepositoryRequest) (Repository, error) {
	src, err := sourceOf(req.Source, "/")
	if err != nil {
		return Repository{}, err
	}
	if src.ID = req.ID; src.ID == "" {
		src.ID = policy.RepositoryIDFor(src.URL)
	}
	if err := policy.CheckID("repository", string(src.ID)); err != nil {
		return Repository{}, err
	}
	if err := r.checkSource(src); err != nil {
		return Repository{}, err
	}
	rec := registry.Repository{ID: src.ID, Source: src.URL, CreatedAt: r.now()}
	if err := req.Options.Validate(); err != nil {
		return Repository{}, err
	}
	if req.Options.Filter != "" && isLocal(src) {
		return Repository{}, policy.Errorf(policy.CodeFilterInvalid, "runtime.repository", "a path's objects are not filtered")
	}
	if rec.Options, err = encodeOptions(req.Options); err != nil {
		return Repository{}, policy.AsDiagnostic(err)
	}
	if err := r.registry.PutRepository(ctx, rec); err != nil {
		return Repository{}, err
	}
	r.event(policy.EventRepositoryAdded, string(src.ID), nil)
	return r.GetRepository(ctx, src.ID)
}

// adoptSource finds the repository of a source, or registers it under its base
// name, with a digest behind where another source has that name.
func (r *Runtime) adoptSource(ctx context.Context, src gitcache.Source) (gitcache.Source, error) {
	all, err := r.registry.ListRepositories(ctx)
	if err != nil {
		return src, err
	}
	for _, rec := range all {
		if rec.Source == src.URL {
			return sourceOfRecord(rec)
		}
	}
	src.ID = policy.RepositoryIDFor(src.URL)
	err = r.registry.PutRepository(ctx, registry.Repository{ID: src.ID, Source: src.URL, CreatedAt: r.now()})
	if errors.Is(err, policy.CodeRepositoryExists) {
		h := sha256.Sum256([]byte(src.URL))
		src.ID += policy.RepositoryID("-" + hex.EncodeToString(h[:3]))
		err = r.registry.PutRepository(ctx, registry.Repository{ID: src.ID, Source: src.URL, CreatedAt: r.now()})
	}
	return src, err
}

func (r *Runtime) repository(ctx context.Context, id policy.RepositoryID) (registry.Repository, error) {
	if err := policy.CheckID("repository", string(id)); err != nil {
		return registry.Repository{}, err
	}
	return r.registry.GetRepository(ctx, id)
}

// ListRepositories returns every registered repository.
func (r *Runtime) ListRepositories(ctx context.Context) ([]Repository, error) {
	recs, err := r.registry.ListRepositories(ctx)
	if err != nil {
		return nil, err
	}
	infos, err := r.cacheInfos(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Repository, 0, len(recs))
	for _, rec := range recs {
		out = append(out, repositoryView(rec, infos[rec.ID]))
	}
	return out, nil
}

func (r *Runtime) cacheInfos(ctx context.Context) (map[policy.RepositoryID]gitcache.RepositoryInfo, error) {
	list, err := r.cache.List(ctx)
	if err != nil {
		return nil, err
	}
	infos := make(map[policy.RepositoryID]gitcache.RepositoryInfo, len(list))
	for _, i := range list {
		infos[i.ID] = i
	}
	return infos, nil
}

func repositoryView(rec registry.Repository, info gitcache.RepositoryInfo) Repository {
	options, _ := optionsOf(rec) // what uses the repository says if they cannot be read
	return Repository{
		ID: rec.ID, Source: withoutCredentials(rec.Source), CreatedAt: rec.CreatedAt, Options: options,
		FetchedAt: info.FetchedAt, CacheBytes: info.CacheBytes, Trees: info.Trees,
	}
}

// withoutCredentials drops the user and password of a URL.
func withoutCredentials(s string) string {
	if u, err := url.Parse(s); err == nil && u.User != nil && u.Host != "" {
		if _, has := u.User.Password(); has || u.Scheme == "https" {
			u.User = nil
		}
		return u.String()
	}
	return s
}

// GetRepository returns one repository.
func (r *Runtime) GetRepository(ctx context.Context, id policy.RepositoryID) (Repository, error) {
	rec, err := r.repository(ctx, id)
	if err != nil {
		return Repository{}, err
	}
	infos, err := r.cacheInfos(ctx)
	return repositoryView(rec, infos[id]), err
}

// FetchRepository brings the mirror up to date.
func (r *Runtime) FetchRepository(ctx context.Context, id policy.RepositoryID) (FetchResult, error) {
	rec, err := r.repository(ctx, id)
	if err != nil {
		return FetchResult{}, err
	}
	src, err := sourceOfRecord(rec)
	if err != nil {
		return FetchResult{}, err
	}
	rep, err := r.cache.Fetch(ctx, src)
	if err != nil {
		return FetchResult{}, err
	}
	r.event(policy.EventRepositoryFetched, string(id), nil)
	return FetchResult{RepositoryID: id, FetchedAt: rep.FetchedAt, Refs: rep.Refs, Shared: rep.Shared}, nil
}

// RemoveRepository forgets a repository and its cache. Allocations that stand
// on it are an error.
func (r *Runtime) RemoveRepository(ctx context.Context, id policy.RepositoryID) error {
	if _, err := r.repository(ctx, id); err != nil {
		return err
	}
	for _, status := range []registry.AllocationStatus{registry.AllocationActive, registry.AllocationStopped, registry.AllocationFailed, registry.AllocationCleanupPending} {
		page, err := r.registry.ListAllocations(ctx, registry.Filter{RepositoryID: id, Status: []string{string(status)}, Limit: 1})
		if err != nil {
			return err
		}
		if len(page.Items) > 0 {
			return policy.Errorf(policy.CodeRepositoryInUse, "runtime.repository", "the execution workspace %s stands on %s", page.Items[0].ID, id)
		}
	}
	// The cache goes first: a record without a cache is an unused repository, a
	// cache without a record would refuse the next source of that id.
	if err := r.cache.Remove(ctx, id); err != nil {
		return err
	}
	if _, err := r.helper.EvictCaches(ctx, helper.EvictRequest{Repository: id}); err != nil {
		return err
	}
	if err := r.registry.DeleteRepository(ctx, id); err != nil {
		return err
	}
	r.event(policy.EventRepositoryRemoved, string(id), nil)
	return nil
}

// Resolve says what a selector names now.
func (r *Runtime) Resolve(ctx context.Context, req ResolveRequest) (ResolveResult, error) {
	rec, err := r.repository(ctx, req.RepositoryID)
	if err != nil {
		return ResolveResult{}, err
	}
	sel := req.Selector.Normalize()
	if err := sel.Validate(); err != nil {
		return ResolveResult{}, err
	}
	scope, err := policy.ParseScope(req.Scope)
	if err != nil {
		return ResolveResult{}, err
	}
	src, err := sourceOfRecord(rec)
	if err != nil {
		return ResolveResult{}, err
	}
	point, warnings, err := r.cache.Resolve(ctx, src, sel, gitcache.ResolveOptions{Scope: scope})
	return ResolveResult{Point: point, Warnings: warnings}, err
}
