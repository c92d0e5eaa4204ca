package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// optionsOf reads a record's settings. Ones that a newer version wrote are an
// error: without them the repository would be used in another way than asked.
func optionsOf(rec registry.Repository) (o policy.RepositoryOptions, err error) {
	if len(rec.Options) == 0 {
		return o, nil
	}
	d := json.NewDecoder(bytes.NewReader(rec.Options))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, policy.Errorf(policy.CodeRegistryFailed, "runtime.repository", "the options of %s cannot be read", rec.ID).Because(err)
	}
	return o, nil
}

// encodeOptions is nil for the zero value, as a record without options has it.
func encodeOptions(o policy.RepositoryOptions) (json.RawMessage, error) {
	b, err := json.Marshal(o)
	if err != nil || string(b) == "{}" {
		return nil, err
	}
	return b, nil
}

// sourceOfRecord is a registered repository as the cache takes it.
func sourceOfRecord(rec registry.Repository) (gitcache.Source, error) {
	o, err := optionsOf(rec)
	return gitcache.Source{ID: rec.ID, URL: rec.Source, Filter: o.Filter}, err
}

// complete has the objects of each point's scope fetched where the repository's
// filter left them out: here, and never while a Worker waits for one.
func (c *creation) complete(ctx context.Context) error {
	for _, repo := range c.repos {
		n, err := c.r.cache.Complete(ctx, repo.source, repo.point)
		if err != nil {
			return err
		}
		if n > 0 {
			c.r.event(policy.EventRepositoryObjectsFetched, string(repo.point.RepositoryID), map[string]string{"commit": repo.point.CommitID, "objects": strconv.Itoa(n)})
		}
	}
	return nil
}
