"""WorkBench's web analytics and project board."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollenv.envs.tools.workbench.tables import Row, Tables, Text, has, office, quoted
from rollenv.tools.backend import tool

METRICS = (
    "total_visits",
    "session_duration_seconds",
    "user_engaged",
    "visits_direct",
    "visits_referral",
    "visits_search_engine",
    "visits_social_media",
)
PLOTS = ("bar", "line", "scatter", "histogram")
LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
_NOT_A_METRIC = (
    "Value to plot must be one of 'total_visits', 'session_duration_seconds', 'user_engaged', 'direct', 'referral', "
    "'search engine', 'social media'"
)


def _by_day(time_min: str | None, time_max: str | None, value: Callable[[Row], float]) -> dict[str, list[float]]:
    days: dict[str, list[float]] = {}
    for row in office().visits:
        day = row["date_of_visit"]
        if (not time_min or day >= time_min) and (not time_max or day <= time_max):
            days.setdefault(day, []).append(value(row))
    return dict(sorted(days.items()))


class Projects(Tables):
    """Functions of analytics and project board."""

    # -- analytics -----------------------------------------------------------------------------------------------------

    @tool
    def analytics_get_visitor_information_by_id(self, visitor_id: Text = None) -> Any:
        """Look up the visits of a visitor to the web site.

        Args:
            visitor_id: of the visitor.
        """
        if not visitor_id:
            return "Visitor ID not provided."
        return [row for row in office().visits if row["visitor_id"] == visitor_id] or "Visitor not found."

    @tool
    def analytics_create_plot(
        self,
        time_min: Text = None,
        time_max: Text = None,
        value_to_plot: Text = None,
        plot_type: Text = None,
    ) -> str:
        """Draw a plot of a metric over some days; returns the path of its file.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
            value_to_plot: total_visits, session_duration_seconds, user_engaged, visits_direct, visits_referral, visits_search_engine or visits_social_media.
            plot_type: bar, line, scatter or histogram.
        """  # noqa: E501
        if not time_min:
            return "Start date not provided."
        if not time_max:
            return "End date not provided."
        if value_to_plot not in METRICS:
            return _NOT_A_METRIC
        if plot_type not in PLOTS:
            return "Plot type must be one of 'bar', 'line', 'scatter', or 'histogram'"
        path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
        self.append("plots", {"file_path": path}, label=len(self.state["plots"]))
        return path

    @tool
    def analytics_total_visits_count(self, time_min: Text = None, time_max: Text = None) -> Any:
        """Count the visits of each day.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
        """
        return {day: len(each) for day, each in _by_day(time_min, time_max, lambda row: 1).items()}

    @tool
    def analytics_engaged_users_count(self, time_min: Text = None, time_max: Text = None) -> Any:
        """Count the engaged users of each day.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
        """
        return {
            day: sum(each) for day, each in _by_day(time_min, time_max, lambda row: int(row["user_engaged"])).items()
        }

    @tool
    def analytics_traffic_source_count(
        self, time_min: Text = None, time_max: Text = None, traffic_source: Text = None
    ) -> Any:
        """Count the visits of each day that came from one source.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
            traffic_source: direct, referral, search engine or social media; all of them if it is left out.
        """

        def came(row: Row) -> int:
            return int(not traffic_source or row["traffic_source"] == traffic_source)

        return {day: sum(each) for day, each in _by_day(time_min, time_max, came).items()}

    @tool
    def analytics_get_average_session_duration(self, time_min: Text = None, time_max: Text = None) -> Any:
        """Average the length of the sessions of each day, in seconds.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
        """
        days = _by_day(time_min, time_max, lambda row: float(row["session_duration_seconds"]))
        return {day: sum(each) / len(each) for day, each in days.items()}

    # -- project board -------------------------------------------------------------------------------------------------

    @tool
    def project_management_get_task_information_by_id(self, task_id: Text = None, field: Text = None) -> Any:
        """Look up one field of a task.

        Args:
            task_id: eight digits.
            field: task_id, task_name, assigned_to_email, list_name, due_date or board.
        """
        return self.field("tasks", task_id, field, "Task")

    @tool
    def project_management_search_tasks(
        self,
        task_name: Text = None,
        assigned_to_email: Text = None,
        list_name: Text = None,
        due_date: Text = None,
        board: Text = None,
    ) -> Any:
        """Find tasks; of each argument a part of the field is enough.

        Args:
            task_name: of the task.
            assigned_to_email: address of whose task it is.
            list_name: Backlog, In Progress, In Review or Completed.
            due_date: as YYYY-MM-DD.
            board: Back end, Front end or Design.
        """
        asked = {"task_name": task_name, "assigned_to_email": assigned_to_email, "list_name": list_name}
        asked |= {"due_date": due_date, "board": board}
        given = [(column, text) for column, text in asked.items() if text]
        if not given:
            return "No search parameters provided."
        return [row for row in self.rows("tasks") if all(has(row, column, text) for column, text in given)]

    @tool
    def project_management_create_task(
        self,
        task_name: Text = None,
        assigned_to_email: Text = None,
        list_name: Text = None,
        due_date: Text = None,
        board: Text = None,
    ) -> str:
        """Add a task; returns its id.

        Args:
            task_name: of the task.
            assigned_to_email: address of whose task it is.
            list_name: Backlog, In Progress, In Review or Completed.
            due_date: as YYYY-MM-DD.
            board: Back end, Front end or Design.
        """
        if not task_name or not assigned_to_email or not list_name or not due_date or not board:
            return "Missing task details."
        email = assigned_to_email.lower()
        for field, value in (("assigned_to_email", email), ("list_name", list_name), ("board", board)):
            if wrong := self._not_for_tasks(field, value):
                return wrong
        task_id = str(self.next_id("tasks")).zfill(8)
        row = {"task_id": task_id, "task_name": task_name, "assigned_to_email": email, "list_name": list_name}
        self.append("tasks", row | {"due_date": due_date, "board": board}, label=0)
        self.relabel("tasks")
        return task_id

    def _not_for_tasks(self, field: str, value: str) -> str:
        """Return what is wrong with a value; empty if nothing is."""
        if field == "board" and value not in BOARDS:
            return f"Board not valid. Please choose from: {quoted(BOARDS)}."
        if field == "list_name" and value not in LISTS:
            return f"List not valid. Please choose from: {quoted(LISTS)}."
        team = (row["assigned_to_email"].lower() for row in self.rows("tasks"))
        if field == "assigned_to_email" and value not in team:
            return "Assignee email not valid. Please choose from the list of team members."
        return ""

    @tool
    def project_management_delete_task(self, task_id: Text = None) -> str:
        """Delete a task.

        Args:
            task_id: eight digits.
        """
        return self.remove("tasks", task_id, "Task")

    @tool
    def project_management_update_task(self, task_id: Text = None, field: Text = None, new_value: Text = None) -> str:
        """Change one field of a task.

        Args:
            task_id: eight digits.
            field: task_name, assigned_to_email, list_name, due_date or board.
            new_value: of the field.
        """
        if not task_id or not field or not new_value:
            return "Task ID, field, or new value not provided."
        value = new_value.lower() if field == "assigned_to_email" else new_value
        if wrong := self._not_for_tasks(field, value):
            return wrong
        if self.find("tasks", task_id) is None:
            return "Task not found."
        if field not in self.columns("tasks"):
            return "Field not valid."
        self.replace("tasks", task_id, field, value)
        return "Task updated successfully."
