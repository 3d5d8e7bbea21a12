-- What workers say of the kinds that they run, so that people can start them with a form.

CREATE TABLE ff_kind_definition (
    namespace       TEXT NOT NULL,
    kind            TEXT NOT NULL,
    definition      TEXT NOT NULL,
    announced_at_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, kind)
);
CREATE INDEX ff_kind_definition_announced_idx ON ff_kind_definition (announced_at_ms);
