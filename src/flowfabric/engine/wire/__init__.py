"""Operations on their way to another process: values, errors, and which of them may be called."""
