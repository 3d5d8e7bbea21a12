-- What workers say of the kinds that they run, so that people can start them with a form.

CREATE TABLE ff_kind_definition (
    namespace       text NOT NULL,
    kind            text NOT NULL,
    definition      text NOT NULL,
    announced_at_ms bigint NOT NULL,
    PRIMARY KEY (namespace, kind)
);
CREATE INDEX ff_kind_definition_announced_idx ON ff_kind_definition (announced_at_ms);
