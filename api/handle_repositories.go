package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// repositoryList is the answer of listRepositories: an object, so that it can
// grow a page token.
type repositoryList struct {
	Items []runtime.Repository `json:"items"`
}

func (c *call) listRepositories() error {
	items, err := c.svc.ListRepositories(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, repositoryList{Items: items})
}

func (c *call) addRepository() error {
	var req runtime.AddRepositoryRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	repo, err := c.svc.AddRepository(c.ctx, req)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/repositories/"+string(repo.ID))
	return c.reply(http.StatusCreated, repo)
}

func (c *call) getRepository() error {
	repo, err := c.svc.GetRepository(c.ctx, policy.RepositoryID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, repo)
}

func (c *call) removeRepository() error {
	if err := c.svc.RemoveRepository(c.ctx, policy.RepositoryID(c.id)); err != nil {
		return err
	}
	return c.done()
}

func (c *call) fetchRepository() error {
	if err := c.noBody(); err != nil {
		return err
	}
	result, err := c.svc.FetchRepository(c.ctx, policy.RepositoryID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, result)
}

func (c *call) resolve() error {
	var req runtime.ResolveRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	result, err := c.svc.Resolve(c.ctx, req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, result)
}
